"""Prompts that begin alike: what one of them has computed, the others find in the cache."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.experiment import Asked, Experiment, counted
from nanoserve.entrypoints.offline.experiments.history import History


def _tell(history: History, _beside: History | None) -> list[str]:
    lines = []
    for life in history.lives.values():
        cached, size = life.num_cached_tokens, history.header.block_size
        computed = sum(chunk.length for _, chunk in life.chunks)
        found = (
            f"{cached} found in the cache ({counted(cached // size, 'block')})"
            if cached
            else "none found in the cache"
        )
        lines.append(
            f"{life.name}, from step {life.arrived}: {life.arrival.num_prompt_tokens} prompt tokens, {found}, {computed} computed"
        )
    twice = max(moment.holders[2] for moment in history.moments)
    return [*lines, f"held by two sequences at once, and stored only once: {counted(twice, 'block')}"]


PREFIX_HIT: Final = Experiment(
    name="prefix-hit",
    title="prompts that begin alike: the beginning is computed only once",
    settings={"block_size": 16, "num_kv_blocks": 40, "max_model_len": 256, "enable_prefix_caching": True},
    requests=[
        Asked(name="first", step=1, shared=96, own=20, generates=24),
        Asked(name="second", step=6, shared=96, own=24, generates=24),  # while the first one lives
        Asked(name="third", step=30, shared=96, own=28, generates=16),  # when both have ended
    ],
    caption="second and third begin like first: what is in the cache (green diamonds) is not computed again",
    tell=_tell,
)
