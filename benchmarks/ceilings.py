"""What a GPU can do at most, measured: how fast it reads its memory, and how fast it multiplies matrices."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

import attrs
import torch
import triton
import triton.language as tl

BYTES: Final = 4 << 30
BLOCK: Final = 16_384
"""Numbers per program: with eight warps each thread has 256 bytes on their way."""
MATRIX: Final = 8192
REPEATS: Final = 7
TERA: Final = 1e12


@attrs.frozen
class Ceilings:
    """The most that the device can do per second: bytes read, and operations of matrix products where that is known."""

    bandwidth: float
    compute: float | None


@triton.jit
def sum_blocks(source_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Each program sums one block of float32."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(source_ptr + start + tl.arange(0, BLOCK)), 0))


def choose_ceilings(
    bandwidth: float | None, compute: float | None, device: str, dtype: str
) -> Ceilings | None:
    """Given terabytes and teraflops per second, on a GPU what is measured in the place of what is not given.

    None where nobody says how fast memory is read.
    """
    reads = None if bandwidth is None else bandwidth * TERA
    multiplies = None if compute is None else compute * TERA
    if device == "cuda":
        reads = reads or read_bandwidth(torch.device(device))
        multiplies = multiplies or multiply_speed(torch.device(device), getattr(torch, dtype))
    return None if reads is None else Ceilings(reads, multiplies)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of reading 4 GiB once, median of seven."""
    source = torch.ones(BYTES // 4, device=device)
    programs = BYTES // 4 // BLOCK
    out = torch.empty(programs, device=device)
    return BYTES / _seconds(lambda: sum_blocks[(programs,)](source, out, BLOCK=BLOCK, num_warps=8))


def multiply_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large product, median of seven."""
    left = torch.randn(MATRIX, MATRIX, device=device).to(dtype)
    out = torch.empty_like(left)
    return 2 * MATRIX**3 / _seconds(lambda: torch.mm(left, left, out=out))


def _seconds(work: Callable[[], object]) -> float:
    """Median time of one call on the GPU's own clock."""
    taken = []
    for _ in range(REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1000)
    return float(statistics.median(taken[2:]))
