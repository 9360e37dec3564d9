"""A client leaves: the blocks and the row are free at once, and the neighbours go on."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment, counted, listed
from nanoserve.entrypoints.offline.experiments.history import History, Life


def _tell(history: History, _beside: History | None) -> list[str]:
    cancelled = [life for life in history.lives.values() if life.ending and life.ending.reason == "abort"]
    lines = [line for life in cancelled for line in _of_cancelled(life, history)]
    others = [life for life in history.lives.values() if life not in cancelled]
    ended = [f"{life.name} with {life.ending.num_generated} tokens" for life in others if life.ending]
    return [*lines, f"the others go on to their ends: {listed(ended)}"]


def _of_cancelled(life: Life, history: History) -> list[str]:
    if not life.returns:
        return [f"{life.name} is cancelled while it waits, and has nothing to give back"]
    assert life.ending is not None
    step, blocks = life.returns[-1]
    before, after = history.moment(step - 1).num_free, history.moment(step).num_free
    lines = [
        f"{life.name} is cancelled before step {step}, after {counted(life.ending.num_generated, 'token')}",
        f"its {counted(blocks, 'block')} are given back before that step is planned: {before} were free, then {after}",
    ]
    took = [each.name for each in history.lives.values() if each.admissions and each.admissions[0][0] == step]
    if took:
        lines.append(f"{listed(took)} waited for a row, and is admitted in the very same step")
    return lines


CANCEL: Final = Experiment(
    name="cancel",
    title="a client leaves: its blocks and its row are free at once, the neighbours go on",
    settings={"block_size": 16, "num_kv_blocks": 32, "max_num_seqs": 3, "max_model_len": 256},
    requests=[
        Asked(name="a", own=40, generates=48),
        Asked(name="b", own=96, generates=48, cancelled=20),
        Asked(name="c", own=40, generates=40),
        Asked(name="d", step=4, own=40, generates=24),  # waits for a row
    ],
    caption="b is cancelled (x): its blocks are free before the next step, and d takes its row",
    tell=_tell,
)
