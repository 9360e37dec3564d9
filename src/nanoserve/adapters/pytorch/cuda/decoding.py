"""Steps in which every row decodes, kernel by kernel or as whole CUDA graphs.

A graph is captured once per size of batch and replayed, which costs the host microseconds. Every kernel must have been compiled and loaded before it is captured, so each capture
begins with a rehearsal. A step's key (`graphs.py`) has its size and kind. Where rows follow a grammar, the forward pass is one graph and the draw another: their masks come between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.draft_head import BehindDraw
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Graphs, Key, Keys
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws

Propose = Callable[..., None]
"""Writes drafts behind the ends of `batch_rows`, `width` - 1 each; with `pdl` and `splits` as steps have, and may be captured."""


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
        self._launcher, self._rehearsal, self._arena, self.propose = launcher, rehearsal, arena, propose
        self._drawing, self.special, self._pdl = drawing, special, pdl
        self._behind = BehindDraw(launcher.mixers.settling, launcher.head)
        self.sink_places = torch.full_like(arena.places, arena.sink_row)
        self.keys, self._graphs = Keys(arena.sizes, launcher.mixers.choose_splits), graphs

    def run(self, key: Key) -> str:
        """Queue a step; returns how it was launched, graph or eager."""
        if self._behind.has_work(key.width) and not (key.samples or key.learns):
            self.special.then = functools.partial(self.run, key._replace(adapted=False, learns=True))
        if self._graphs is None:
            self._step(self._launcher, self._arena.places, key)
            return "eager"
        if (key := self.keys.stand_in(key)) not in self._graphs:
            self.capture(key)
        self._graphs.replay(key)
        return "graph"

    def run_draw(self, count: int, width: int, masks: int) -> None:
        """Queue the draw, with so many masks, of a step of `count` rows that has left its logits."""
        self.run(self.keys.of_draw(count, width, masks))

    def rehearse(self, key: Key) -> None:
        """Launch a step over padded places: every kernel runs, over few layers, and no row changes."""
        self._step(self._rehearsal, self.sink_places, key)
        if key.samples:
            self._drawing.note_draw()

    def capture(self, key: Key) -> None:
        """Rehearse a step, and keep its graph if there are graphs."""
        if self._graphs is not None:
            self.rehearse(key)
            self.keys.stand_ins.owners.add(key)
            self._graphs.capture(key, functools.partial(self._step, self._launcher, self._arena.places, key))

    def _step(self, launcher: ForwardLauncher, places: Tensor, key: Key) -> None:
        bucket, splits, samples, adapted, width, learns, _, masks = key
        if masks:
            drawn = places if launcher is self._rehearsal else self.special.masks.rows
            self.special.draw_masked(drawn[:bucket], masks=masks, width=width, pdl=self._pdl)
            return
        places = places[:bucket]
        if width > 1 and not learns:
            self.propose(batch_rows=places, splits=splits, width=width, pdl=self._pdl)
        if not learns:
            logits = launcher.decode(places, splits=splits, pdl=self._pdl, adapted=adapted, width=width)
        if samples:
            self._drawing.draw(logits, places, width=width, pdl=self._pdl)
        if samples or learns:
            self._behind.run(places, splits=splits, width=width)
