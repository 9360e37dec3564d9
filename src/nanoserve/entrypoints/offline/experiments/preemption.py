"""A pool too small for everybody: the youngest gives its blocks back, and is computed again later."""

from __future__ import annotations

import math
from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment, counted
from nanoserve.entrypoints.offline.experiments.history import History, Life


def _tell(history: History, beside: History | None) -> list[str]:
    victims = [life for life in history.lives.values() if life.preemptions]
    count = sum(len(life.preemptions) for life in victims)
    size, steps = history.header.num_blocks, len(history.steps)
    lines = [f"a pool of {size} blocks: {counted(count, 'preemption')}, in {steps} steps"]
    for life in victims:
        lines.extend(_of_victim(life))
    if beside is not None:
        same = all(life.answer == beside.lives[key].answer for key, life in history.lives.items())
        size, steps = beside.header.num_blocks, len(beside.steps)
        verdict = "the same, token for token" if same else "DIFFERENT"
        lines.append(f"a pool of {size} blocks takes {steps} steps; every answer is {verdict}")
    return lines


def _of_victim(life: Life) -> list[str]:
    given = dict(life.returns)
    lines = [
        f"{life.name} is preempted before step {step} and gives {given[step]} blocks back"
        for step in life.preemptions
    ]
    resumed = [(step, admission) for step, admission in life.admissions if admission.resumed]
    for (step, admission), until in zip(resumed, [*life.preemptions[1:], math.inf], strict=True):
        again = sum(chunk.length for number, chunk in life.chunks if step <= number < until)
        found = admission.num_cached_tokens
        lines.append(
            f"{life.name} is resumed in step {step}: {found} tokens are still in the cache, {again} are computed again"
        )
    return lines


PREEMPTION: Final = Experiment(
    name="preemption",
    title="a pool too small for everybody: the youngest steps back, and its text does not change",
    settings={"block_size": 16, "num_kv_blocks": 16, "max_model_len": 256},
    beside={"num_kv_blocks": 64},
    requests=[
        Asked(name="a", own=64, generates=34),
        Asked(name="b", own=64, generates=34),
        Asked(name="c", own=64, generates=34),
    ],
    caption="{num_kv_blocks} blocks are too few for three sequences: the youngest steps back (red), and comes back later",
    tell=_tell,
)
