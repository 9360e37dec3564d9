"""The numbers of one run of `nanoserve generate`, in one line."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from nanoserve.entrypoints.offline.collecting import Collector


def summarise(collectors: Iterable[Collector], *, seconds: float, load_seconds: float) -> str:
    """Tokens, times and rates; `seconds` is the time from the first request's arrival to the last token."""
    outputs = [each.output() for each in collectors]
    generated = sum(len(sequence.token_ids) for each in outputs for sequence in each.outputs)
    metrics = [each.metrics for each in outputs if each.metrics]
    first = [each.time_to_first_token for each in metrics if each.time_to_first_token is not None]
    numbers: Mapping[str, str] = {
        "prompts": str(len(outputs)),
        "prompt tokens": str(sum(len(each.prompt_token_ids) for each in outputs)),
        "prefix hits": str(sum(each.num_cached_tokens for each in metrics)),
        "generated tokens": str(generated),
        "time to first token": f"{statistics.median(first) * 1000:.0f} ms" if first else "none",
        "tok/s": f"{generated / seconds:.1f}" if seconds else "0",
        "total": f"{seconds:.2f} s",
        "load": f"{load_seconds:.2f} s",
        "preemptions": str(sum(each.num_preemptions for each in metrics)),
    }
    return ", ".join(f"{name} {value}" for name, value in numbers.items())
