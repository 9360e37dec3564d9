"""Launches once whatever serving can launch, so that nothing is compiled later: rows that decode, chunks, and both together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, bucket_of, buckets, widths_of
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep, describe
from nanoserve.adapters.pytorch.cuda.decoding import Decoding
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import FIRST_GRAPHS, TYPICAL_LENGTH, Key
from nanoserve.adapters.pytorch.cuda.many_rows import InvariantProducts, NoProducts
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps
from nanoserve.adapters.pytorch.cuda.recovery import Recovery
from nanoserve.adapters.pytorch.cuda.row_updates import RowUpdates
from nanoserve.adapters.pytorch.prompt_scoring import TOKENS_AT_ONCE
from nanoserve.kernels.linear.launch import stored_ways
from nanoserve.ports.step import Chunk

TIMED = 10
"""Steps of each size that are timed."""


@attrs.define(eq=False)
class Rehearsal:
    """Runs of all steps over padded places; `launcher` launches every kernel through few layers. No row changes.

    `token_counts` are of mixed steps, one for each way in which these launch what depends on their tokens; `invariant_counts`, of invariant ones.

    Attributes:
        step_seconds: tokens of steps and what these take, where rows have drafts.
    """

    _launcher: ForwardLauncher
    _arena: Arena
    _decoding: Decoding
    _drawing: Drawing
    _row_updates: RowUpdates = attrs.field(kw_only=True)
    _mixed_steps: MixedSteps = attrs.field(kw_only=True)
    _recovery: Recovery = attrs.field(kw_only=True)
    _token_counts: Sequence[int] = attrs.field(kw_only=True)
    _invariant_counts: Sequence[int] = attrs.field(kw_only=True)
    step_seconds: tuple[tuple[int, float], ...] = attrs.field(default=(), init=False)

    @property
    def _first_sizes(self) -> list[int]:
        """Sizes of batch whose graphs are captured first, ascending."""
        return sorted({bucket_of(size, self._arena.sizes.max_num_seqs) for size in FIRST_GRAPHS})

    @torch.inference_mode()
    def prepare(self) -> None:
        """Launch every kernel, then capture the first graphs."""
        self.run()
        self._recovery.recover()
        self.step_seconds = self.capture_first()
        self._mixed_steps.capture_first(self._launcher)

    @torch.inference_mode()
    def run(self) -> None:
        """Launch every kernel of ours of any step, of rows that decode, of chunks and of both together; no row changes. An encoder decodes nothing.

        The vendor's library needs kernels of its own for most numbers of tokens: what captures a step loads them before, others are loaded by their first step.
        """
        self._row_updates.copy_sinks()
        if self._launcher.model.spec.encoder is not None:
            self._chunks()
            return
        with self._launcher.many.made(NoProducts()):
            for size, every_splits in self._batches():
                for splits in every_splits:
                    for width in (0, *widths_of(size, self._arena.sizes)):
                        self._decoding.rehearse(Key(size, splits, samples=True, width=width))
                if self._launcher.loras is not None:
                    self._decoding.rehearse(Key(size, min(every_splits), samples=True, adapted=True))
            self._chunks()
            self._beside_a_chunk()

    @torch.inference_mode()
    def run_invariant(self) -> None:
        """Launch the kernels of invariant steps through few layers, but for draws; their chunks are computed in one way only."""
        tokens, sizes = self._chunk_tokens(), buckets(self._arena.sizes.max_num_seqs)
        most_beside = self._arena.sizes.max_num_batched_tokens - tokens
        places, before = self._arena.places, self._arena.places.clone()
        with self._launcher.many.made(InvariantProducts()):
            for size in sizes:
                for adapted in {False, self._launcher.loras is not None}:
                    self._decoding.rehearse(Key(size, 1, samples=False, adapted=adapted, invariant=True))
            places.fill_(self._arena.sink_row)  # rows of requests may stand there
            for size in sizes:
                self._launcher.mixed(self._describe_chunks([tokens]), min(size, most_beside), splits=1)
            places.copy_(before)
            for count in {tokens, *self._invariant_counts}:
                self._run_tokens(count)
            if self._launcher.loras is not None:
                self._launcher.mixed(self._describe_chunks([tokens]), 0, splits=1, adapted=True)

    def capture_first(self) -> tuple[tuple[int, float], ...]:
        """Capture the first graphs; returns seconds of steps where rows have drafts. The largest comes first: later ones fit into the memory that it took."""
        if self._launcher.model.spec.encoder is not None:
            return ()
        ways = (False,) if self._launcher.loras is None else (False, True)
        for bucket in reversed(self._first_sizes):
            for adapted, width in itertools.product(ways, {1, self._arena.sizes.max_width}):
                how: dict[str, Any] = {"special": False, "adapted": adapted, "width": width}
                self._decoding.capture(self._decoding.keys.of(bucket, TYPICAL_LENGTH, **how))
        return self._step_seconds() if self._arena.sizes.max_width > 1 else ()

    def _step_seconds(self) -> tuple[tuple[int, float], ...]:
        """Seconds of steps over padded places, by their number of tokens; empty on a CPU, where kernels are interpreted.

        Rows are short: to read long ones takes as long in a wide step as in a narrow one. Graphs must have been captured.
        """
        if not self._arena.lengths.is_cuda:
            return ()
        found = []
        for size in self._first_sizes:
            key, ends = self._decoding.keys.of(size, TYPICAL_LENGTH, special=False), []
            for _ in range(TIMED + 1):
                self._decoding.run(key)
                ends.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
                ends[-1].record()
            torch.cuda.synchronize()
            found.append((size, ends[0].elapsed_time(ends[-1]) / TIMED / 1000))
        self._drawing.find_ring()
        return tuple(found)

    def _batches(self) -> Iterator[tuple[int, set[int]]]:
        """Every size of batch, the largest first, and splits to rehearse it with: all of a common size, of the others new ones or one."""
        common, every_size = self._first_sizes, buckets(self._arena.sizes.max_num_seqs)
        found = {size: self._every_splits(size) for size in every_size}
        seen = set[int]().union(*(found[size] for size in common))
        split = {size for size in common if max(found[size]) > 1}
        for size in sorted(found, reverse=True):
            if size not in common:
                new, most = found[size] - seen, max(found[size])
                # Up to the next common size attention has one tiling, with one kernel for rows that are split and one for others.
                end = min((each for each in common if each > size), default=0)
                if most > 1 and end not in split:
                    new.add(most)
                    split.add(end)
                found[size] = new or {min(found[size])}
                seen |= found[size]
            yield size, found[size]

    def _chunks(self) -> None:
        """Chunks alone: one in each way, as many as there can be, and each number of `token_counts`."""
        sizes = self._arena.sizes
        for way in range(1, self._launcher.mixers.ways):
            self._run_chunks([self._chunk_tokens()], way)
        self._run_chunks([1] * min(sizes.max_num_seqs, sizes.max_num_batched_tokens))
        if (loras := self._launcher.loras) is not None:
            most = min(sizes.max_num_batched_tokens, sizes.max_num_seqs * sizes.max_model_len)
            for count in loras.ways(most):
                self._run_tokens(count, adapted=True)
        for count in self._token_counts:
            self._run_tokens(count)

    def _run_tokens(self, count: int, *, adapted: bool = False) -> None:
        whole, rest = divmod(count, longest := self._arena.sizes.max_model_len)
        self._run_chunks([longest] * whole + [rest] * (rest > 0), adapted=adapted)

    def _run_chunks(self, lengths: Sequence[int], way: int = 0, *, adapted: bool = False) -> None:
        step = self._describe_chunks(lengths, way)
        self._launcher.mixed(step, 0, splits=1, adapted=adapted)
        self._learn(step, 0, 1)

    def _beside_a_chunk(self) -> None:
        """Every size of batch beside a chunk, and draws outside of graphs."""
        launcher, tokens = self._launcher, self._chunk_tokens()
        chunk = self._describe_chunks([tokens])
        most_beside = self._arena.sizes.max_num_batched_tokens - tokens
        for size, every_splits in self._batches():
            for splits in every_splits:
                hidden = launcher.mixed(chunk, min(size, most_beside), splits=splits)
                self._learn(chunk, min(size, most_beside), splits)
            logits = launcher.logits.of(launcher.logits.choose(hidden, size))
            for shaped in (logits, logits.float()):  # penalties and biases make float32
                self._draw(shaped, size)
                self._decoding.special.masks.exclude(shaped, size)
        for width in widths_of(1, self._arena.sizes):
            for each in (logits[:1], logits[:1].float()):
                self._draw(each.expand(width, -1).contiguous(), 1, width)
        most = max(self._arena.sizes.max_num_seqs, TOKENS_AT_ONCE)  # in as many prompts are scored
        for count in stored_ways(launcher.model.head.matrix, hidden):
            launcher.logits.apart(hidden.new_empty(min(count, most), hidden.shape[1]))

    def _learn(self, step: ChunkStep, count: int, splits: int) -> None:
        if (head := self._launcher.head) is not None:
            head.learn_chunks(
                step, count, splits=splits, num_chosen=min(count + 1, self._arena.sizes.max_num_seqs)
            )

    def _draw(self, logits: Tensor, size: int, width: int = 0) -> None:
        self._drawing.draw(logits, self._decoding.sink_places[:size], width=width, pdl=False)
        self._drawing.note_draw()

    def _chunk_tokens(self) -> int:
        """The length of a chunk that is one tile and leaves room for a row that decodes."""
        sizes = self._arena.sizes
        return max(1, min(self._launcher.mixers.tile, sizes.max_model_len, sizes.max_num_batched_tokens - 1))

    def _describe_chunks(self, lengths: Sequence[int], way: int = 0) -> ChunkStep:
        """Write chunks of the sink row into the arena."""
        arena = self._arena
        chunks = tuple(Chunk(arena.sink_row, 0, length, samples=False) for length in lengths)
        step = describe(arena, self._launcher.mixers, chunks, EMPTY, way)
        arena.write("logits_indices", [0] * arena.sizes.max_num_seqs)
        arena.flush()
        return step

    def _every_splits(self, bucket: int) -> set[int]:
        """Each number of splits that a batch of this size can meet: every one is another kernel to add them up."""
        longest, splits = self._arena.sizes.max_model_len, self._decoding.keys.splits
        halves = [longest >> times for times in range(longest.bit_length())]
        return {splits(bucket, each) for half in halves for each in (half, half // 2 + 1)}
