"""Submitted steps, and their results once their tokens are on the host."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nanoserve.adapters.pytorch.cuda.transfers import Arrivals, Download
from nanoserve.adapters.pytorch.pooling import Pooled, add_pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, read_scores
from nanoserve.adapters.pytorch.routed_experts import Routed, reports
from nanoserve.adapters.pytorch.sampling.device_sampler import PackedScores
from nanoserve.ports.step import StepResult, TokenLogprobs


@attrs.define(eq=False, kw_only=True)
class CudaTicket:
    """A submitted step.

    Attributes:
        slot: where its tokens arrive, in the order of `drawn_rows`; None if no row samples.
        order: for each row of the plan's `sampling_rows`, its place among the arrivals, any for one that gets nothing; None if
            they agree.
        late: of a step whose draw was queued after its forward pass, the ticket of that draw.
        pooled: rows that were pooled with their vectors on the device, and these on their way.
        width: of a wide plan's step, tokens that each row has drawn at the most; else 0. `admissions`, how many rows had been admitted.
        asked: of a wide plan's step in which some rows got nothing, the rows of the plan's `sampling_rows`.
        is_empty: whether the step computes nothing.
    """

    step: int
    slot: int | None = None
    drawn_rows: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    scores: PackedScores | None = None
    scores_download: Download | None = None
    prompt_scores: tuple[PromptScores, ...] = ()
    late: CudaTicket | None = None
    pooled: tuple[tuple[Pooled, Download], ...] = ()
    routed: tuple[Routed, ...] = ()
    width: int = 0
    asked: tuple[int, ...] = ()
    admissions: int = 0
    is_empty: bool = False

    @property
    def rows(self) -> Sequence[int]:
        """The rows of the plan's `sampling_rows`."""
        drawn = self.drawn_rows
        if self.asked:
            return self.asked
        return drawn if self.order is None else [drawn[place] for place in self.order]

    def result(self, arrivals: Arrivals) -> StepResult:
        """Wait for the step's result."""
        drawn = self.late or self
        result = drawn.drawn(arrivals)
        if drawn.prompt_scores:
            result = attrs.evolve(result, prompt_logprobs=read_scores(drawn.prompt_scores))
        if self.pooled:
            arrived = [attrs.evolve(each, vectors=vectors.wait()) for each, vectors in self.pooled]
            result = add_pooled(result, arrived)
        return attrs.evolve(result, routed_experts=reports(self.routed)) if self.routed else result

    def drawn(self, arrivals: Arrivals) -> StepResult:
        """The tokens of a draw's ticket, and their scores."""
        if self.slot is None and self.asked:
            return StepResult(token_ids=[], counts=(0,) * len(self.asked))
        if self.slot is None:
            return StepResult(token_ids=[0] * len(self.order or ()))
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        if self.scores is not None and self.scores_download is not None:
            logprobs = self.scores.read(self.scores_download.wait())
        if self.width:
            return self._gained(arrivals, self.slot, logprobs)
        drawn = arrivals.wait(self.slot, len(self.drawn_rows))
        broken: tuple[int, ...] = ()
        if min(drawn) < 0:  # the draw reports a logit that is not finite as -1 - token
            broken = tuple(row for row, token in zip(self.drawn_rows, drawn, strict=True) if token < 0)
        tokens = drawn if self.order is None else [drawn[place] for place in self.order]
        return StepResult(token_ids=tokens, logprobs=logprobs, broken=broken)

    def _gained(
        self, arrivals: Arrivals, slot: int, logprobs: dict[int, tuple[TokenLogprobs, ...]]
    ) -> StepResult:
        """The result of a wide step: of each row the number of its tokens, that of its drafts, and its tokens, see `sample_and_append`."""
        columns, rows = self.width + 2, self.rows
        arrived = arrivals.wait(slot, len(self.drawn_rows) * columns)
        places = {row: columns * place for place, row in enumerate(self.drawn_rows)}
        counts = tuple([arrived[places[row]] if row in places else 0 for row in rows])
        starts = [places.get(row, 0) + 2 for row in rows]
        gained = [arrived[start : start + count] for start, count in zip(starts, counts, strict=True)]
        count_of = dict(zip(rows, counts, strict=True))
        return StepResult(
            token_ids=[token for each in gained for token in each],
            counts=counts,
            num_drafts=sum(arrived[1::columns]),
            drafted_rows=sum(map(bool, arrived[1::columns])),
            logprobs={row: scores[: count_of[row]] for row, scores in logprobs.items()},
            broken=tuple(row for row, each in zip(rows, gained, strict=True) if min(each, default=0) < 0),
        )
