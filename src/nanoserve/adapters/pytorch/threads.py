"""How many threads to compute with: all there are, unless fewer are clearly faster on the model itself.

Every core helps prefill, large batches and large models. But where another process takes a core, each parallel region
waits for the descheduled thread, and a small model may lose more to waking threads than they save.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.step_inputs import StepInputs

_CLEARLY_FASTER = 0.75
"""Fewer threads are chosen only if a decode step then takes less than this fraction of the time."""
_PATIENCE = 0.15
_REPEATS = 5


def fastest_threads(most: int, seconds_with: Callable[[int], float]) -> int:
    """`most`, or the power of two below it that is clearly faster; `seconds_with` measures a count."""
    if most == 1:
        return 1
    best, best_seconds = most, seconds_with(most)
    for power in reversed(range((most - 1).bit_length())):
        seconds = seconds_with(1 << power)
        if seconds < _CLEARLY_FASTER * best_seconds:
            best, best_seconds = 1 << power, seconds
    return best


def decode_seconds(model: DecoderModel, dtype: torch.dtype) -> Callable[[int], float]:
    """A function that sets the thread count and returns the median time of a few decode steps of one row."""
    device = torch.device("cpu")
    kv = KVStore(model.spec, num_blocks=1, block_size=16, dtype=dtype, device=device)
    inputs = StepInputs.of_prompt([0], block_size=16, num_groups=len(model.spec.cache_groups))

    @torch.inference_mode()
    def seconds_with(count: int) -> float:
        torch.set_num_threads(count)
        model.logits(model(inputs, kv))
        times: list[float] = []
        while len(times) < _REPEATS and (not times or sum(times) < _PATIENCE):
            began = time.perf_counter()
            model.logits(model(inputs, kv))
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return seconds_with
