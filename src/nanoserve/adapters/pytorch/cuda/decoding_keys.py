"""The keys of decoding steps, by which their graphs are found: sizes and lengths are rounded, so that few graphs serve all batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nanoserve.adapters.pytorch.cuda.batches import bucket_of, buckets, widths_of
from nanoserve.adapters.pytorch.cuda.graphs import StandIns
from nanoserve.ports.engine_facts import EngineSizes

FIRST_GRAPHS = (1, 2, 8, 16, 32, 64, 128, 256, 512)
"""Sizes of batch whose graphs are captured before the engine is ready; others are captured when they first occur."""
TYPICAL_LENGTH = 512
"""Tokens of the rows whose graphs are captured before serving."""
LENGTH_STEP = 64
"""Tokens that a batch's longest row may grow by before the shape of its attention is chosen anew."""
PATIENCE = 64
"""So many steps of a size replay the graph of a size at most 8 places, or an eighth, larger, before they have their own."""
DRAW_ALONE = 0
"""In a key, instead of parts: no forward pass, but the draw of the logits that it left, with masks on them."""


class Key(NamedTuple):
    """How a step is launched.

    Attributes:
        places: of the batch.
        splits: parts that attention cuts caches into.
        samples: whether the step samples inside the graph; `learns`: whether it is only what a head that drafts does behind a draw outside.
        adapted: whether some of its rows have adapters.
        width: tokens of each place, which may be at its limit; 0 for one token of places that are not.
    """

    places: int
    splits: int
    samples: bool
    adapted: bool = False
    width: int = 0
    learns: bool = False


class Keys:
    """Makes the keys of an engine's steps; `choose_splits` is that of its mixers."""

    def __init__(self, sizes: EngineSizes, choose_splits: Callable[[int, int], int]) -> None:
        self._sizes, self._most = sizes, sizes.max_num_seqs
        self._choose_splits = functools.cache(choose_splits)
        self._stand_ins, self._buckets = StandIns[Key](PATIENCE), buckets(self._most)

    def of(self, count: int, longest: int, *, special: bool, adapted: bool = False, width: int = 1) -> Key:
        """The key of a step of `count` rows, the longest of so many tokens; `special` rows are drawn outside of it.

        Its width is at most the one that is planned: batches are not wider than is worth it, nor are those with adapters.
        """
        bucket = bucket_of(count, self._most)
        wide = 0
        if width > 1:
            wide = 1 if adapted else max(each for each in widths_of(bucket, self._sizes) if each <= width)
        return Key(bucket, self.splits(bucket, longest), not special, adapted, wide)

    def of_draw(self, count: int, width: int) -> Key:
        """The key of the draw with masks of a step of `count` rows that has left its logits."""
        return Key(bucket_of(count, self._most), DRAW_ALONE, samples=True, width=width)

    def splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for rows of up to `longest` tokens, which is rounded up so that few answers do."""
        rounded = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self._sizes.max_model_len)
        return self._choose_splits(bucket, rounded)

    def stand_in(self, key: Key) -> Key:
        """The key whose graph the step replays: its own, or for the first few times one that computes the same."""
        return self._stand_ins.choose(key, self._nearly(key))

    def _nearly(self, key: Key) -> Iterator[Key]:
        """Keys of plain steps that compute what this one's does: any number of splits is right, and places beyond the batch are padded."""
        if key.splits == DRAW_ALONE or key.adapted or key.width:
            return
        most = max(key.places + 8, key.places * 9 // 8)
        for places in [each for each in self._buckets if key.places <= each <= most]:
            for splits in (key.splits, max(key.splits // 2, 1), key.splits * 2):
                yield key._replace(places=places, splits=splits)
