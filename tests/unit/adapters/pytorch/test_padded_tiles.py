"""What steps write lies within the room that an engine has for it, however few rows it has: tiles of padded steps, and splits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.mixed_steps import CHUNKS, TOKENS
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.mixers.attention.gpu import GpuAttention
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuFacts
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.layer_spec import AttentionSpec
from tests.tiny_spec import TINY, tiny_spec


class Sections:
    """Refuses what is longer than its section; the rest of an arena is not asked for."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.sections = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in shapes.items()}
        self.block_tables = {0: torch.zeros(1, 1, dtype=torch.int32)}

    def write(self, section: str, values: Sequence[int], /) -> None:
        assert len(values) <= math.prod(self.sections[section].shape)


def make_sizes(rows: int, tokens: int, longest: int) -> EngineSizes:
    numbers: Any = {"vocab_size": 8, "block_size": 16, "num_blocks": 8}
    return EngineSizes(max_num_seqs=rows, max_num_batched_tokens=tokens, max_model_len=longest, **numbers)


@pytest.mark.parametrize("most", CHUNKS)
@pytest.mark.parametrize("rows", [1, 8, CHUNKS[0], 256])
def test_tiles_of_padded_steps_fit(rows: int, most: int) -> None:
    mixer = TINY.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    for padded in TOKENS:
        sizes = make_sizes(rows, max(padded, rows), 8192)
        facts = GpuFacts(sizes, torch.bfloat16, torch.device("cpu"), 132, invariant=False, decoded=4)
        attention = GpuAttention({0: mixer}, facts)
        arena: Any = Sections(attention.sections)
        pages: Any = {0: [torch.zeros(8, 2, 1, 16, 8)]}
        attention.attach(arena, pages, {})
        count = min(rows, most)
        lengths = [padded // count] * count
        spans = [(row, 0, length, sum(lengths[:row])) for row, length in enumerate(lengths)]
        tiles = attention.prepare(spans, None, (padded, count))
        assert len(tiles) >= sum(-(-length // attention.tile) for length in lengths)


@pytest.mark.parametrize("heads", [2, 8, 40])
def test_there_is_room_for_the_splits_of_every_length(heads: int) -> None:
    """A short row may have more than the longest one."""
    spec = tiny_spec(1, heads=(heads, heads, 128))
    sizes = make_sizes(1, 16, 4096)
    facts = GpuFacts(sizes, torch.bfloat16, torch.device("cpu"), 132, invariant=False, decoded=1)
    mixers: Any = GpuMixers(spec, facts)
    room = len(mixers.by_layer[0]._scratch.ms) // heads
    assert room >= max(mixers.choose_splits(1, length) for length in range(1, 4097))


def test_no_section_of_an_arena_takes_more_than_it_has_room_for() -> None:
    """Written on, block tables behind it were zero, and answers other tokens."""
    sizes = make_sizes(4, 64, 64)
    arena = Arena(sizes, [[0]], {"tiles": (3, 4)}, Uploads(torch.device("cpu")))
    arena.write("tiles", [1] * 12)
    arena.write("lengths", [1], row=4)
    with pytest.raises(IndexError, match="tiles has 12 places, not 16"):
        arena.write("tiles", [0] * 16)
    with pytest.raises(IndexError, match="lengths has 5 places, not 6"):
        arena.write("lengths", [1], row=5)
