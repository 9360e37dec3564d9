"""Steps in which every row decodes, kernel by kernel or as whole CUDA graphs.

A graph is captured once per size of batch and replayed, which costs the host microseconds. Every kernel must have been compiled
and loaded before it is captured, so each capture begins with a rehearsal. Where rows follow a grammar, the forward pass is one
graph and the draw another, because their masks come between the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import bucket_of, buckets, widths_of
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Graphs, StandIns
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws

FIRST_GRAPHS = (1, 2, 8, 16, 32, 64, 128, 256, 512)
"""Sizes of batch whose graphs are captured before the engine is ready; others are captured when they first occur."""
TYPICAL_LENGTH = 512
"""Tokens of the rows whose graphs are captured before serving."""
LENGTH_STEP = 64
"""Tokens that a batch's longest row may grow by before the shape of its attention is chosen anew."""
PATIENCE = 64
"""So many steps of a size replay the graph of a size at most 8 places, or an eighth, larger, before they have their own."""


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


Propose = Callable[..., None]
"""Writes drafts behind the ends of `batch_rows`, `width` - 1 each; with `pdl` and `splits` as steps have, and may be captured."""
DRAW_ALONE = 0
"""In a key, instead of parts: no forward pass, but the draw of the logits that it left, with masks on them."""


class Decoding:
    """Launches decoding steps over the arena's places, and rehearses them over padded ones.

    `rehearsal` launches the same kernels as `launcher`, through fewer layers. `graphs` are those that steps are captured into; with `pdl`
    their kernels overlap, see `kernels.device.pdl`. `sink_places` are padded places alone; `propose` makes drafts.
    """

    def __init__(
        self,
        launcher: ForwardLauncher,
        rehearsal: ForwardLauncher,
        arena: Arena,
        drawing: Drawing,
        special: SpecialDraws,
        *,
        graphs: Graphs | None,
        pdl: bool,
        propose: Propose,
    ) -> None:
        self.propose = propose
        self._launcher, self._rehearsal, self._arena = launcher, rehearsal, arena
        self._drawing, self.special, self._pdl = drawing, special, pdl
        self._most, self._max_model_len = arena.sizes.max_num_seqs, arena.sizes.max_model_len
        self.sink_places = torch.full_like(arena.places, arena.sink_row)
        self._choose_splits = functools.cache(launcher.mixers.choose_splits)
        self._graphs, self._stand_ins, self._buckets = graphs, StandIns[Key](PATIENCE), buckets(self._most)

    def key(self, count: int, longest: int, *, special: bool, adapted: bool = False, width: int = 1) -> Key:
        """The key of a step of `count` rows, the longest of so many tokens; `special` rows are drawn outside of it.

        Its width is at most the one that is planned: batches are not wider than is worth it, nor are those with adapters.
        """
        bucket = bucket_of(count, self._most)
        wide = 0
        if width > 1:
            wide = (
                1 if adapted else max(each for each in widths_of(bucket, self._arena.sizes) if each <= width)
            )
        return Key(bucket, self.splits(bucket, longest), not special, adapted, wide)

    def splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for rows of up to `longest` tokens, which is rounded up so that few answers do."""
        rounded = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self._max_model_len)
        return self._choose_splits(bucket, rounded)

    def run(self, key: Key) -> str:
        """Queue a step; returns how it was launched, graph or eager."""
        if self._launcher.head is not None and not (key.samples or key.learns):
            self.special.then = functools.partial(self.run, key._replace(adapted=False, learns=True))
        if self._graphs is None:
            self._launch(key)
            return "eager"
        key = self._stand_ins.choose(key, self._nearly(key))
        if key not in self._graphs:
            self.capture(key)
        self._graphs.replay(key)
        return "graph"

    def run_draw(self, count: int, width: int) -> None:
        """Queue the draw with masks of a step of `count` rows that has left its logits."""
        self.run(Key(bucket_of(count, self._most), DRAW_ALONE, samples=True, width=width))

    def _nearly(self, key: Key) -> Iterator[Key]:
        """Keys of plain steps that compute what this one's does: any number of splits is right, and places beyond the batch are padded."""
        if key.splits == DRAW_ALONE or key.adapted or key.width:
            return
        most = max(key.places + 8, key.places * 9 // 8)
        for places in [each for each in self._buckets if key.places <= each <= most]:
            for splits in (key.splits, max(key.splits // 2, 1), key.splits * 2):
                yield key._replace(places=places, splits=splits)

    def rehearse(self, key: Key) -> None:
        """Launch a step over padded places: every kernel runs, over few layers, and no row changes."""
        self._step(self._rehearsal, self.sink_places, key)
        if key.samples:
            self._drawing.note_draw()

    def capture(self, key: Key) -> None:
        """Rehearse a step, and keep its graph if there are graphs."""
        if self._graphs is not None:
            self.rehearse(key)
            self._graphs.capture(key, functools.partial(self._launch, key))

    def _launch(self, key: Key) -> None:
        self._step(self._launcher, self._arena.places, key)

    def _step(self, launcher: ForwardLauncher, places: Tensor, key: Key) -> None:
        bucket, splits, samples, adapted, width, learns = key
        if splits == DRAW_ALONE:
            self.special.draw_masked(places[:bucket], width=width, pdl=self._pdl)
            return
        places = places[:bucket]
        if width > 1 and not learns:
            self.propose(batch_rows=places, splits=splits, width=width, pdl=self._pdl)
        if not learns:
            logits = launcher.decode(places, splits=splits, pdl=self._pdl, adapted=adapted, width=width)
        if samples:
            self._drawing.draw(logits, places, width=width, pdl=self._pdl)
        if launcher.head is not None and (samples or learns):
            launcher.head.learn(places, splits=splits, width=width)
