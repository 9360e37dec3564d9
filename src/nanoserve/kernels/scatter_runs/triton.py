"""The device side of scattered runs: one program per segment of at most SEGMENT values."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["target_ptr", "upload_ptr"])
def scatter_segments(target_ptr, upload_ptr, SEGMENT: tl.constexpr):
    """Write one segment: descriptor i of the upload is (destination in the target, length, source in the upload)."""
    # Neither pointer is specialised on: whether it is a multiple of 16 bytes changes, and would be compiled anew.
    descriptor_ptr = upload_ptr + tl.program_id(0) * 3
    destination = tl.load(descriptor_ptr).to(tl.int64)
    length = tl.load(descriptor_ptr + 1)
    source = tl.load(descriptor_ptr + 2)
    places = tl.arange(0, SEGMENT)
    inside = places < length
    values = tl.load(upload_ptr + source + places, mask=inside)
    tl.store(target_ptr + destination + places, values, mask=inside)
