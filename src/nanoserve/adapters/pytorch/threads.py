"""How many threads to compute with: measured on the model itself, since neither the model nor the machine says it.

A large model wants every core's share of the memory bandwidth. A small one loses more to waking threads than they save,
and where another process takes a core, each parallel region waits for the descheduled thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.step_inputs import GroupInputs, StepInputs

_WORTH_IT = 0.9
"""More threads are chosen only if they take at most this fraction of the time."""
_PATIENCE = 0.15
_REPEATS = 5


def fastest_threads(most: int, seconds_with: Callable[[int], float]) -> int:
    """The smallest of 1, 2, 4 ... `most` that no larger one clearly beats; `seconds_with` measures a count."""
    counts = sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})
    best, best_seconds = counts[0], seconds_with(counts[0]) if most > 1 else 0.0
    for count in counts[1:]:
        seconds = seconds_with(count)
        if seconds < _WORTH_IT * best_seconds:
            best, best_seconds = count, seconds
    return best


def decode_seconds(model: DecoderModel, dtype: torch.dtype) -> Callable[[int], float]:
    """A function that sets the thread count and returns the median time of a few decode steps of one row."""
    device = torch.device("cpu")
    kv = KVStore(model.spec, num_blocks=1, block_size=16, dtype=dtype, device=device)
    group = GroupInputs(block_tables=torch.ones(1, 1, dtype=torch.int64), slot_mapping=torch.tensor([16]))
    inputs = StepInputs(
        token_ids=torch.zeros(1, dtype=torch.int64),
        positions=torch.zeros(1, dtype=torch.int64),
        query_lengths=(1,),
        context_lengths=(1,),
        logits_indices=torch.zeros(1, dtype=torch.int64),
        groups=(group,) * len(model.spec.cache_groups),
    )

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
