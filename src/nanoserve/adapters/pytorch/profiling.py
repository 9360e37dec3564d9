"""Where the device's time goes, kernel by kernel, and what the device can do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

READ_BYTES: Final = 2**30
"""Far more than any cache holds."""
MATRIX: Final = 8192
_REPEATS: Final = 20


def profile(work: Callable[[], object], *, device: str) -> list[tuple[str, int, float]]:
    """Run `work` and return (name, calls, seconds) of each kernel on a GPU or operation on a CPU, longest first.

    An operation's seconds do not hold those of the operations that it calls. Kernels that overlap count in full.
    """
    on_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with torch_profile(activities=[activity], acc_events=True) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    wanted = "CUDA" if on_gpu else "CPU"
    rows = [
        (each.key, each.count, (each.self_device_time_total if on_gpu else each.self_cpu_time_total) / 1e6)
        for each in recorded.key_averages()
        if each.device_type.name == wanted
    ]
    return sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])


def measure_ceilings(dtype: torch.dtype) -> tuple[float, float]:
    """Bytes per second that a reduction reads, and operations per second of a large product in `dtype`, on the GPU."""
    device = torch.device("cuda")
    with torch.inference_mode():
        memory = torch.zeros(READ_BYTES // 4, dtype=torch.float32, device=device)
        bandwidth = READ_BYTES / _seconds(memory.sum)
        del memory
        left = torch.randn(MATRIX, MATRIX, device=device).to(dtype)
        out = torch.empty_like(left)
        compute = 2 * MATRIX**3 / _seconds(lambda: torch.mm(left, left, out=out))
    torch.cuda.empty_cache()
    return bandwidth, compute


def _seconds(work: Callable[[], Tensor]) -> float:
    """Median time of one call on the GPU's own clock."""
    for _ in range(3):
        work()
    make_event: Any = torch.cuda.Event
    times: list[float] = []
    for _ in range(_REPEATS):
        began, ended = make_event(enable_timing=True), make_event(enable_timing=True)
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)
