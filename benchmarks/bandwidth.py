"""How fast a GPU reads its memory, measured: the ceiling that everything bound by memory is compared with."""

from __future__ import annotations

import statistics

import torch
import triton
import triton.language as tl

BYTES = 4 << 30
BLOCK = 16_384
"""Numbers per program: with eight warps each thread has 256 bytes on their way."""
REPEATS = 7


@triton.jit
def sum_blocks(source_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Each program sums one block of float32."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(source_ptr + start + tl.arange(0, BLOCK)), 0))


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of reading 4 GiB once, median of seven."""
    source = torch.ones(BYTES // 4, device=device)
    programs = BYTES // 4 // BLOCK
    out = torch.empty(programs, device=device)
    rates = []
    for _ in range(REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        sum_blocks[(programs,)](source, out, BLOCK=BLOCK, num_warps=8)
        end.record()
        torch.cuda.synchronize()
        rates.append(BYTES / (start.elapsed_time(end) / 1000))
    return float(statistics.median(rates[2:]))
