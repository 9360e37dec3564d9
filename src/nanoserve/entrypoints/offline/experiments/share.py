"""Eight answers to one prompt: its blocks are computed and stored once, and held by eight tables."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment
from nanoserve.entrypoints.offline.experiments.history import History


def _tell(history: History, _beside: History | None) -> list[str]:
    lives = list(history.lives.values())
    fullest = max(history.moments, key=lambda moment: moment.holders.total())
    shared = max(moment.holders[len(lives)] for moment in history.moments)
    held = sum(count * blocks for count, blocks in fullest.holders.items())
    computed = sum(chunk.length for life in lives for _, chunk in life.chunks)
    asked = sum(life.arrival.num_prompt_tokens for life in lives)
    different = len({tuple(life.answer) for life in lives})
    return [
        f"{len(lives)} answers to a prompt of {lives[0].arrival.num_prompt_tokens} tokens: {computed} prompt tokens were computed instead of {asked}",
        f"{shared} blocks were held by {len(lives)} sequences at once",
        f"at the fullest moment the tables listed {held} blocks, and {fullest.holders.total()} were taken from the pool",
        f"{different} of the answers are different: each has a seed of its own",
    ]


SHARE: Final = Experiment(
    name="share",
    title="eight answers to one prompt: its blocks are stored once and held eight times",
    settings={"block_size": 16, "num_kv_blocks": 40, "max_model_len": 256},
    requests=[Asked(name="story", own=88, generates=32, n=8, temperature=1.0)],
    caption="eight answers to one prompt: the blocks of the prompt (black) are stored once",
    tell=_tell,
)
