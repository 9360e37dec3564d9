"""Draws of invariant steps in which rows verify what they have decoded (`ports/step.py`).

A row of n verified tokens and k others behind them is set back to the n, and yields as many of its k + 1 draws as agree with those
others, as in a wide step. Each row has as many places, one of `WIDTHS`, of which those behind the last are the last again. The logits of all rows
together would fill the memory, so a few rows are drawn at a time, in memory that the step's widest products have left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import WINDOW, Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.many_rows import InvariantProducts
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.tickets import Verified
from nanoserve.adapters.pytorch.cuda.workspace import MOST_PLACES, Workspace
from nanoserve.adapters.pytorch.devices import upload
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.ports.step import AdmittedRow, StepPlan, StepResult

ALIGNED: Final = 32
WIDTHS: Final = (8, 16, WINDOW)


class Windows:
    """The rows of one runner that are verified.

    Attributes:
        is_ready: whether kernels of invariant steps are compiled, or are not to be.
    """

    def __init__(
        self,
        launcher: ForwardLauncher,
        arena: Arena,
        space: Workspace,
        *,
        sampler: DeviceSampler,
        drawing: Drawing,
        special: SpecialDraws,
        batches: Batches,
        rehearsal: Rehearsal,
    ) -> None:
        self._launcher, self._arena, self._space, self._rehearsal = launcher, arena, space, rehearsal
        self._sampler, self._drawing, self._special, self._batches = sampler, drawing, special, batches
        self._histories: dict[int, tuple[AdmittedRow, list[int]]] = {}
        self._tentative = set[int]()
        self.is_ready = not arena.lengths.is_cuda
        self._room: Tensor | None = None
        self._only_slot = torch.zeros_like(arena.ring_position)

    def apply(self, plan: StepPlan) -> None:
        """Set rows back to what is verified of them; the arena's next flush sends it."""
        for row in plan.released:
            self._histories.pop(row, None)
            self._tentative.discard(row)
        if not plan.invariant:
            if self._histories:
                self._tentative.update([row for row in plan.decoding if row in self._histories])
            return
        for admitted in plan.admitted:
            if self._sampler.special((admitted.row,)):
                self._histories[admitted.row] = admitted, [*admitted.token_ids]
        for chunk in plan.chunks:
            if not chunk.unverified:
                continue
            row, end = chunk.row, chunk.start + chunk.length
            length = end - chunk.unverified
            self._arena.write("lengths", (length,), row=row)
            self._arena.write("limits", (end + 1,), row=row)
            self._batches.set_length(row, length)
            if row in self._histories:
                self._tentative.discard(row)
                admitted, token_ids = self._histories[row]
                self._sampler.admit(attrs.evolve(admitted, token_ids=tuple(token_ids)))

    @contextlib.contextmanager
    def computing(self, plan: StepPlan) -> Iterator[None]:
        """The step is launched as its plan says; afterwards other steps are launched as the engine's are."""
        if not plan.invariant:
            yield
            return
        if not self.is_ready:  # the first one: who never asks does not wait for its kernels
            self.is_ready = True
            self._arena.flush()  # as nothing is sent where kernels are only compiled
            with compiling_ahead(os.cpu_count() or 1):
                self.rehearse()
            self.rehearse()
        with self._launcher.many.made(InvariantProducts()):
            yield

    def rehearse(self) -> None:
        """Launch every kernel of invariant steps; no row changes."""
        self._rehearsal.run_invariant()
        with self._launcher.many.made(InvariantProducts()):
            for count in self._launcher.logits.invariant_ways(len(self._take_room())):
                places, logits, where = self._compute(
                    (self._arena.sink_row,), WINDOW, count * [0], self._space.normed
                )
        for width in WIDTHS:
            for each in (logits[:width], logits[:width].float()):  # penalties and biases make float32
                self._drawing.draw(each, places, width=width, pdl=False, **where)

    def draw(self, plan: StepPlan, hidden: Tensor | None) -> Verified:
        """Queue the draws of a step's rows that verify, from the hidden states [T, hidden] of all of its tokens."""
        chunks, ends = plan.chunks, itertools.accumulate(each.length for each in plan.chunks)
        spans = [
            (chunk.row, end - 1 - chunk.unverified, end - 1)
            for chunk, end in zip(chunks, ends, strict=True)
            if chunk.unverified
        ]
        others = tuple([each.row for each in chunks if each.samples and not each.unverified])
        tentative = frozenset(self._tentative.intersection(plan.decoding)) if self._tentative else frozenset()
        verified = Verified(others + plan.decoding, plan.sampling_rows, tentative)
        if hidden is None or not spans:
            return verified
        self._drawing.num_tickets += 1
        width = next(each for each in WIDTHS if each > max(last - first for _, first, last in spans))
        for rows, index in self._slices(spans, width):
            places, logits, where = self._compute(rows, width, index, hidden)
            scores = self._special.draw_window(rows, places, logits, width, **where)
            verified.parts.append((rows, width, self._drawing.arrivals.fetch(where["drawn"][0]), scores))
        return verified

    def note_decoded(self, plan: StepPlan) -> Verified | None:
        """The outcome of an invariant step whose rows all decode; None of others, and where no row needs it."""
        return self.draw(plan, None) if plan.invariant and self._histories else None

    def _compute(
        self, rows: tuple[int, ...], width: int, index: list[int], hidden: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Rows on the device, the logits of these tokens of the step, and where their draws of `width` places go."""
        device, size = hidden.device, -(-len(rows) * (width + 2) // ALIGNED) * ALIGNED
        places = upload(rows, torch.int32, device)
        chosen = hidden.index_select(0, upload(index, torch.int64, device))
        logits = self._launcher.logits.of(chosen, self._take_room()[: len(index)])
        drawn = torch.empty(1, size, dtype=torch.int32, device=device)
        return places, logits, {"drawn": drawn, "ring_position": self._only_slot}

    def _slices(
        self, spans: Sequence[tuple[int, int, int]], width: int
    ) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Rows that are drawn together, and the tokens of the step that their places, `width` each, are."""
        most = len(self._take_room()) // width
        special = [each for each in spans if self._sampler.special((each[0],))]
        few = max(1, len(self._space.logits) // width)  # there is memory to shape the logits of so many
        plain = [each for each in spans if each not in special] if special else spans
        for members, size in ((plain, most), (special, min(few, most))):
            for start in range(0, len(members), size):
                chosen = members[start : start + size]
                index = [min(first + ahead, last) for _, first, last in chosen for ahead in range(width)]
                yield tuple([row for row, _, _ in chosen]), index

    def collect(self, verified: Verified, result: StepResult, admissions: int) -> None:
        """Take note of what the rows have gained; `admissions` are those up to their step."""
        tokens, counts = iter(result.token_ids), result.counts or (1,) * len(verified.asked)
        for row, count in zip(verified.asked, counts, strict=True):
            gained = list(itertools.islice(tokens, count))
            if not self._batches.has_stayed(row, admissions):
                continue
            if row in self._histories and row not in verified.tentative:
                self._histories[row][1].extend(gained)
            if row not in verified.others:
                self._batches.add_tokens((row,), count)

    def _take_room(self) -> Tensor:
        """Memory for logits [MOST_PLACES or less, vocab]."""
        if self._room is None:
            widest, vocab_size = self._space.entered, self._space.logits.shape[1]
            places = min(widest.numel() // vocab_size, MOST_PLACES) // WINDOW * WINDOW or WINDOW
            if places * vocab_size > widest.numel():
                widest = widest.new_empty(places * vocab_size)
            self._room = widest[: places * vocab_size].view(places, vocab_size)
        return self._room
