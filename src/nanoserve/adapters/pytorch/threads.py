"""Times of steps on a CPU, and the number of threads that follows: all, unless fewer are clearly faster on the model itself.

Every core helps prefill, large batches and large models. But where another process takes a core, each parallel region
waits for the descheduled thread, and a small model may lose more to waking threads than they save.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.step_inputs import StepInputs

_CLEARLY_FASTER = 0.75
"""Fewer threads are chosen only if a decode step then takes less than this fraction of the time."""
_MEASURED_TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of steps from which the cost of any other follows well enough."""
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

    def seconds_with(count: int) -> float:
        torch.set_num_threads(count)
        return statistics.median(step_times(model, dtype, 1, time.perf_counter))

    return seconds_with


def step_costs(model: DecoderModel, dtype: torch.dtype) -> tuple[tuple[int, float], ...]:
    """Numbers of tokens, and the times of steps with them, never less for more.

    They are compared as long as the engine runs, so they are times of the processor: these say little of what else ran meanwhile. What
    disturbs a step makes it longer, so a larger one that took less says what a smaller one costs at the most.
    """
    threads = torch.get_num_threads()
    least = [min(step_times(model, dtype, count, time.process_time)) / threads for count in _MEASURED_TOKENS]
    costs = [*itertools.accumulate(reversed(least), min)]
    return tuple(zip(_MEASURED_TOKENS, reversed(costs), strict=True))


def guess_costs(model: DecoderModel, dtype: torch.dtype) -> tuple[tuple[int, float], ...]:
    """Numbers of rows, and what a guess for each takes a smaller model; nothing without one."""
    small = model.draft_head
    return step_costs(small, dtype) if isinstance(small, DecoderModel) else ()


@torch.inference_mode()
def step_times(
    model: DecoderModel, dtype: torch.dtype, num_tokens: int, clock: Callable[[], float]
) -> list[float]:
    """The times of a few steps of this many tokens, all of which get logits."""
    size = max(_MEASURED_TOKENS)
    kv = KVStore(model.spec, num_blocks=1, block_size=size, dtype=dtype, device=torch.device("cpu"))
    groups = len(model.spec.cache_groups)
    inputs = StepInputs.of_prompt([0] * num_tokens, block_size=size, num_groups=groups)
    model.logits(model(inputs, kv))
    times: list[float] = []
    while len(times) < _REPEATS and (not times or sum(times) < _PATIENCE):
        began = clock()
        model.logits(model(inputs, kv))
        times.append(clock() - began)
    return times
