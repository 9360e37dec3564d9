"""The device side of scattered runs: one program per segment of at most SEGMENT values."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["target", "upload"])
def scatter_segments(target, upload, SEGMENT: tl.constexpr):
    """Write one segment: descriptor i of the upload is (destination in the target, length, source in the upload)."""
    descriptor = upload + tl.program_id(0) * 3
    destination = tl.load(descriptor).to(tl.int64)
    length = tl.load(descriptor + 1)
    source = tl.load(descriptor + 2)
    places = tl.arange(0, SEGMENT)
    inside = places < length
    values = tl.load(upload + source + places, mask=inside)
    tl.store(target + destination + places, values, mask=inside)
