"""The same long prompt without and with a bound on the time between two tokens of its neighbours."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment, counted
from nanoserve.entrypoints.offline.experiments.history import History


def _tell(history: History, beside: History | None) -> list[str]:
    lines = [_of_run("with the bound", history)]
    return lines if beside is None else [_of_run("without a bound", beside), *lines]


def _of_run(what: str, history: History) -> str:
    neighbours = [life for life in history.lives.values() if life.name != "long"]
    gaps = [gap for life in neighbours for gap in history.gaps(life.arrival.key)]
    tokens = max(step.num_tokens for step, _ in gaps)
    longest = max(seconds for _, seconds in gaps)
    return (
        f"{what}: {_of_chunks(history)}; for its next token a neighbour waited for"
        f" up to {tokens} computed tokens, {1000 * longest:.0f} ms"
    )


def _of_chunks(history: History) -> str:
    """Those that were computed beside somebody, and those after which nobody waited."""
    decoding = {step.number for step in history.steps if step.decoding}
    chunks = [(step in decoding, chunk.length) for step, chunk in history.life("long").chunks]
    beside = [length for is_beside, length in chunks if is_beside]
    alone = sum(length for is_beside, length in chunks if not is_beside)
    told = f"{sum(beside)} prompt tokens in {counted(len(beside), 'chunk')}"
    if len(beside) > 1:
        told += f" of {min(beside)} to {max(beside)}"
    return f"{told}, and {alone} when nobody else was left" if alone else told


ITL_BOUND: Final = Experiment(
    name="itl-bound",
    title="a long prompt against a bound on the gap between two tokens of its neighbours",
    settings={"max_itl_ms": 40.0, "max_num_batched_tokens": 1280, "max_num_seqs": 8, "num_kv_blocks": 128},
    beside={"max_itl_ms": None},
    in_one_picture=True,
    requests=[
        Asked(name="a", own=16, generates=24),
        Asked(name="b", own=16, generates=26),
        Asked(name="c", own=16, generates=28),
        Asked(name="long", step=8, own=1200, generates=8),
    ],
    caption="left, no bound: one step computes the whole prompt, and everybody waits for it; right, a bound of {max_itl_ms} ms",
    tell=_tell,
)
