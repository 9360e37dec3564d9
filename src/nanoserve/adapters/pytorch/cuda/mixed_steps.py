"""Steps that compute chunks of prompts, and rows that decode beside them.

Small ones are padded to a `Shape` and captured, with their draw unless it is apart: the device is done with their kernels before
the host has launched them one by one. In long ones the host is ahead, and they are launched as they are, as are those whose mixers cannot be padded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batch, bucket_of
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep, describe
from nanoserve.adapters.pytorch.cuda.decoding import Decoding
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import TYPICAL_LENGTH, Graphs, StandIns
from nanoserve.adapters.pytorch.cuda.transfers import Download
from nanoserve.adapters.pytorch.pooling import Pooled, RowPooling
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, PromptScoring
from nanoserve.ports.step import Chunk, StepPlan

TOKENS: Final = (64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096)
"""Tokens of the chunks in a padded step; more are a multiple of `POOLED_STEP`, where none of them yields a token."""
POOLED_STEP: Final = 512
CHUNKS: Final = (32, 64)
"""Chunks in a padded step at the most; the second, where none of them yields a token."""
LAUNCH: Final = 4e11
"""Multiplications that an H200 computes while a slow host launches a layer, in a millisecond; a fast one takes a third of that."""
PLACES: Final = (0, 8, 32, 64, 128, 192, 256, 384, 512)
CROWDS: Final = (*((64, n) for n in (512, 1024, 2048, 3072, 4096)), (128, 1280), (192, 1280), (256, 1280))
"""Places of rows that decode, and tokens of chunks, in the steps that are captured before serving: small ones first, for which large ones would stand in."""
MOST_GRAPHS: Final = 96
PATIENCE: Final = 64
"""At most so many steps of a shape replay the graph of a larger one, before they have their own."""


class Shape(NamedTuple):
    """The numbers that a step is padded to.

    Attributes:
        tokens: of the chunks.
        places: of rows that decode.
        chosen: tokens whose logits are computed.
        chunks: how many there may be.
        splits: of decode attention.
        pools: whether nothing is drawn inside, and hidden states are wanted, of all tokens where none are chosen.
        invariant: as in `StepPlan`.
        adapted: whether some of its rows have adapters.
        width: of the draw inside, see `Drawing.draw`; None if the step is drawn from outside.
    """

    tokens: int
    places: int
    chosen: int
    chunks: int
    splits: int
    pools: bool = False
    invariant: bool = False
    adapted: bool = False
    width: int | None = None


@attrs.frozen(eq=False)
class MixedRun:
    """A mixed step that was queued.

    Attributes:
        logits: [S, vocab] of the tokens that sample, valid until the next step.
        hidden: [T, hidden] of a step in which rows verify what they have decoded, valid until then, too.
        how: graph or eager.
        scores: log-probabilities of prompt tokens, on the device.
        pooled: rows that were pooled with their vectors on the device, and these on their way.
        is_drawn: whether its tokens were drawn, too.
    """

    step: ChunkStep
    logits: Tensor
    how: str
    hidden: Tensor | None = None
    scores: tuple[PromptScores, ...] = ()
    pooled: tuple[tuple[Pooled, Download], ...] = ()
    is_drawn: bool = False


class MixedSteps:
    """Launches them over chunks that it describes in the arena, and scores or pools prompts for the rows that ask."""

    def __init__(
        self,
        launcher: ForwardLauncher,
        arena: Arena,
        logits: Tensor,
        decoding: Decoding,
        graphs: Graphs | None,
        *,
        scoring: PromptScoring,
        pooling: RowPooling,
        drawing: Drawing,
    ) -> None:
        """`logits` are those of the workspace."""
        self._scoring, self._pooling, self._drawing = scoring, pooling, drawing
        self._launcher, self._arena, self._logits, self._decoding = launcher, arena, logits, decoding
        self._graphs = graphs if launcher.mixers.pads else None
        self._most_tokens = LAUNCH / launcher.model.multiplications
        self._seen, self._learnt = set[Shape](), set[Shape]()
        self._stand_ins = StandIns[Shape](2 * self._most_tokens, self._padding)
        self._states: dict[Shape, Tensor] = {}
        self._adapted = False  # whether rows of the step that is being queued have adapters

    def capture_first(self, brief: ForwardLauncher) -> None:
        """Capture the steps in which prompts come beside a crowd, over the sink row: captured while they serve, they would keep all of it waiting. `brief` loads their kernels."""
        most = self._arena.sizes.max_num_seqs if self._launcher.head is None else 0
        crowds, ways = (each for each in CROWDS if each[0] <= most), {False, self._launcher.loras is not None}
        for (places, tokens), self._adapted in itertools.product(crowds, ways):
            chunk = Chunk(self._arena.sink_row, 0, tokens, samples=False)
            width = int(self._arena.sizes.max_width > 1)
            if (shape := self._shape((chunk,), places, TYPICAL_LENGTH, width)) is not None:
                what = (attrs.evolve(chunk, length=1),), EMPTY
                step = self._describe(*what, padded=shape[:4])
                self._arena.flush()
                self._launch(shape, step, brief)
                self._drawing.note_draw()
                self._seen.add(shape)
                self._padded(shape, *what)
                self._drawing.note_draw()

    def run(self, plan: StepPlan, batch: Batch, longest: int, *, special: bool) -> MixedRun:
        """Queue the step of a plan, whose batch's longest row has so many tokens; and its draw where it is a graph, unless rows are `special`."""
        chunks, apart = plan.chunks, special or plan.masked or plan.invariant
        width = None if apart else int(plan.width > 1)
        loras = self._launcher.loras
        self._adapted = loras is not None and loras.mix(chunks, batch)
        reads = bool(self._scoring.asks(chunks) or self._launcher.records)
        if self._pooling.asked and not (reads or batch.places or any(each.samples for each in chunks)):
            return self._pool(chunks)
        whole = reads or bool(self._pooling.asked)
        if whole or any(each.unverified for each in chunks):
            return self._run_and_read(chunks, batch, longest, whole=whole)
        shape = self._shape(chunks, len(batch.places), longest, width)
        if shape is None:
            step, hidden = self._whole(chunks, batch, longest, choose=())
            if step.sampling:
                self._launcher.logits.of(hidden)
            return MixedRun(step, self._logits[: len(step.sampling)], "eager")
        step, how = self._padded(shape, chunks, batch)
        return MixedRun(step, self._logits[: len(step.sampling)], how, is_drawn=shape.width is not None)

    def _padded(
        self, shape: Shape, chunks: tuple[Chunk, ...], batch: Batch, pooled: Sequence[int] = ()
    ) -> tuple[ChunkStep, str]:
        """Queue a step as a graph of this shape, which the second such step captures."""
        step = self._describe(chunks, batch, padded=shape[:4], pooled=pooled)
        self._arena.flush()
        launch = functools.partial(self._launch, shape, step, self._launcher)
        how = self._replay(shape, shape, self._seen, launch)
        self._let_learn(step, shape.places, shape.splits, 0 if shape.pools else shape.chosen, shape)
        return step, how

    def _replay(self, key: Hashable, shape: Shape, seen: set[Shape], launch: Callable[[], object]) -> str:
        assert self._graphs is not None
        if key not in self._graphs:
            if shape not in seen:  # which loads its kernels, for the case that it comes again
                launch()
                seen.add(shape)
                return "eager"
            self._graphs.capture(key, launch)
        self._graphs.replay(key)
        return "graph"

    def _let_learn(
        self, step: ChunkStep, count: int, splits: int, chosen: int, shape: Shape | None = None
    ) -> None:
        """Let a head that drafts read a step, after its draw."""
        if (head := self._launcher.head) is None:
            return
        how: dict[str, Any] = {"splits": splits, "num_chosen": chosen}
        learn: Callable[[], object] = functools.partial(head.learn_chunks, step, count, **how)
        if shape is not None:
            learn = functools.partial(self._replay, (shape,), shape, self._learnt, learn)
        self._decoding.special.then = learn

    def _states_of(
        self,
        chunks: tuple[Chunk, ...],
        choose: Sequence[int] | None,
        batch: Batch = EMPTY,
        longest: int = 1,
        *,
        whole: bool = False,
    ) -> tuple[ChunkStep, Tensor, str]:
        """Queue chunks and a batch; returns hidden states of all their tokens, or of those that are chosen, and how it was launched: a `whole` step is no graph."""
        shape = None if whole else self._pooled_shape(chunks, len(batch.places), chooses=choose is not None)
        if shape is None:
            return *self._whole(chunks, batch, longest, choose=choose), "eager"
        step, how = self._padded(shape, chunks, batch, choose or ())
        return step, self._states[shape], how

    def _pool(self, chunks: tuple[Chunk, ...]) -> MixedRun:
        """Queue a step that yields vectors alone."""
        single = self._pooling.single(chunks)
        step, states, how = self._states_of(chunks, single)
        if single is None:
            vectors = self._pooling.pool(chunks, states)
        else:
            vectors = self._pooling.pool_single(chunks, states[: len(single)])
        return MixedRun(step, self._logits[:0], how, pooled=self._fetched(vectors))

    def _fetched(self, vectors: Sequence[Pooled]) -> tuple[tuple[Pooled, Download], ...]:
        return tuple([(each, self._drawing.arrivals.fetch(each.vectors)) for each in vectors])

    def _run_and_read(
        self, chunks: tuple[Chunk, ...], batch: Batch, longest: int, *, whole: bool
    ) -> MixedRun:
        """Queue a step whose hidden states are read beyond the next token, or in which rows verify what they have decoded."""
        step, hidden, how = self._states_of(chunks, None, batch, longest, whole=whole)
        fetched = self._fetched(self._pooling.pool(chunks, hidden) if self._pooling.asked else ())
        scores = self._scoring.score(chunks, hidden, self._arena.tokens, self._launcher.logits.apart)
        count = len(step.sampling)
        if count:
            self._launcher.logits.of(self._launcher.logits.choose(hidden, count))
        return MixedRun(step, self._logits[:count], how, hidden, tuple(scores), fetched)

    def _whole(
        self,
        chunks: tuple[Chunk, ...],
        batch: Batch,
        longest: int,
        *,
        choose: Sequence[int] | None = None,
    ) -> tuple[ChunkStep, Tensor]:
        """Queue a step kernel by kernel; returns normed hidden states of all its tokens, or of those that sample and the chunks' tokens `choose`."""
        step = self._describe(chunks, batch, pooled=choose or ())
        self._arena.flush()
        count = len(batch.places)
        # By bucket, not by count: the tilings that rehearsals have compiled are those of buckets.
        splits = self._decoding.keys.splits(bucket_of(max(count, 1), self._arena.sizes.max_num_seqs), longest)
        chosen = None if choose is None else len(step.sampling) + len(choose)
        hidden = self._launcher.mixed(step, count, splits=splits, num_chosen=chosen, adapted=self._adapted)
        self._let_learn(step, count, splits, len(step.sampling))
        return step, hidden

    def _describe(self, chunks: tuple[Chunk, ...], batch: Batch, **more: Any) -> ChunkStep:
        way = 0 if self._launcher.many.is_invariant else None
        step = describe(self._arena, self._launcher.mixers, chunks, batch, way, **more)
        if self._launcher.loras is not None and self._adapted:
            self._launcher.loras.describe(chunks, step)
        if (encoder := self._launcher.model.spec.encoder) is not None:
            rows, first = list[int](), encoder.first_position
            seconds = self._pooling.seconds if encoder.token_types > 1 else {}
            for chunk in chunks:
                second = seconds.get(chunk.row, chunk.length)
                rows += range(first, first + second)
                rows += range(first + second + encoder.positions, first + chunk.length + encoder.positions)
            self._arena.write("added_rows", rows + [0] * (step.num_tokens - len(rows)))
        return step

    def _launch(self, shape: Shape, step: ChunkStep, launcher: ForwardLauncher) -> None:
        how: dict[str, Any] = {"num_chosen": shape.chosen or None, "adapted": shape.adapted}
        hidden = launcher.mixed(step, shape.places, splits=shape.splits, **how)
        if shape.pools:
            self._states[shape] = hidden
        else:
            logits = launcher.logits.of(hidden)
            if shape.width is not None:
                places = self._arena.sampling_places[: shape.chosen]
                self._drawing.draw(logits, places, width=shape.width, pdl=False)

    def _pooled_shape(self, chunks: Sequence[Chunk], num_decoding: int, *, chooses: bool) -> Shape | None:
        """As `_shape`, of a step whose hidden states are wanted."""
        sizes, count = self._arena.sizes, sum(each.length for each in chunks)
        rounded = -(-count // POOLED_STEP) * POOLED_STEP
        tokens = min(next((each for each in TOKENS if count <= each), rounded), sizes.max_num_batched_tokens)
        most = next((min(each, sizes.max_num_seqs) for each in CHUNKS if len(chunks) <= each), None)
        places = next((min(each, sizes.max_num_seqs) for each in PLACES if num_decoding <= each), None)
        if most is None or places is None or tokens > self._most_tokens:
            return None
        if tokens + places > sizes.max_num_batched_tokens:
            return None
        return self._worthwhile(Shape(tokens, places, most if chooses else 0, most, splits=1, pools=True))

    def _worthwhile(self, shape: Shape) -> Shape | None:
        """The shape or one that stands in for it, unless nothing is captured, or too much is already."""
        shape = shape._replace(invariant=self._launcher.many.is_invariant, adapted=self._adapted)
        shape = self._stand_ins.choose(shape, self._larger(shape))
        is_new = shape not in self._seen
        return None if self._graphs is None or (is_new and len(self._seen) == MOST_GRAPHS) else shape

    def _larger(self, shape: Shape) -> Iterator[Shape]:
        """Shapes that were seen and hold this one, the smallest first, in one order on all ranks; a quarter larger at most or by what is computed while a fast host launches it."""
        most = max(0.25 * (shape.tokens + shape.places), self._most_tokens / 3)
        for each in sorted(self._seen, key=lambda each: (each.tokens + each.places, each[:5])):
            holds = each[5:] == shape[5:] and bool(each.chosen) is bool(shape.chosen)
            holds = holds and all(its >= least for its, least in zip(each[:4], shape[:4], strict=True))
            if holds and self._padding(shape, each) <= most:
                yield each

    def _padding(self, shape: Shape, other: Shape) -> float:
        """The tokens by which another one is larger, any splits being right; a few at least, since they may be slower."""
        return max(sum(other[:2]) - sum(shape[:2]), 2 * self._most_tokens / PATIENCE)

    def _shape(
        self, chunks: Sequence[Chunk], num_decoding: int, longest: int, width: int | None
    ) -> Shape | None:
        """The smallest that holds a step; None if it is not worth it."""
        sizes = self._arena.sizes
        count, ends = sum(each.length for each in chunks), sum(each.samples for each in chunks)
        tokens = next((each for each in TOKENS if count <= each), None)
        places = next((min(each, sizes.max_num_seqs) for each in PLACES if num_decoding <= each), None)
        if tokens is None or tokens > self._most_tokens or places is None or len(chunks) > CHUNKS[0]:
            return None
        most = min(CHUNKS[0], sizes.max_num_seqs)
        chosen = min(places + most, sizes.max_num_seqs)
        if tokens + places > sizes.max_num_batched_tokens or places + ends > chosen:
            return None
        # Rounded up, so that rows that grow seldom ask for another graph.
        splits = self._decoding.keys.splits(max(places, 1), 1 << (longest - 1).bit_length())
        width = width if num_decoding or ends else None
        return self._worthwhile(Shape(tokens, places, chosen, most, splits, width=width))
