"""A long prompt beside decoding neighbours: it is computed in chunks, and nobody has to wait for it."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment
from nanoserve.entrypoints.offline.experiments.history import History


def _tell(history: History, _beside: History | None) -> list[str]:
    long = history.life("long")
    numbers = {step for step, _ in long.chunks}
    beside = [step for step in history.steps if step.number in numbers]
    lengths = " + ".join(str(chunk.length) for _, chunk in long.chunks)
    budget, most = history.header.max_num_batched_tokens, max(step.num_tokens for step in beside)
    neighbours = min(len(step.decoding) for step in beside)
    return [
        f"long arrives before step {long.arrived} with {long.arrival.num_prompt_tokens} prompt tokens; a step computes at most {budget}",
        f"it is computed in {len(long.chunks)} chunks: {lengths} tokens, in steps {min(numbers)} to {max(numbers)}",
        f"in each of these steps at least {neighbours} neighbours got their next token beside it; the fullest computed {most} tokens",
    ]


CHUNKED_PREFILL: Final = Experiment(
    name="chunked-prefill",
    title="a long prompt beside decoding neighbours: computed in chunks, and nobody waits for it",
    settings={"max_num_batched_tokens": 64, "max_num_seqs": 8, "num_kv_blocks": 48, "max_model_len": 512},
    requests=[
        Asked(name="a", own=16, generates=24),
        Asked(name="b", own=16, generates=28),
        Asked(name="c", own=16, generates=32),
        Asked(name="long", step=8, own=300, generates=12),
    ],
    caption="a step computes at most {max_num_batched_tokens} tokens: the long prompt comes in chunks, its neighbours go on",
    tell=_tell,
)
