"""Submitted steps, and their results once their tokens are on the host."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import attrs

from nanoserve.adapters.pytorch.cuda.transfers import Arrivals, Download
from nanoserve.adapters.pytorch.pooling import Pooled, add_pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, read_scores
from nanoserve.adapters.pytorch.routed_experts import Routed, reports
from nanoserve.adapters.pytorch.sampling.device_sampler import PackedScores
from nanoserve.ports.step import StepResult, TokenLogprobs


@attrs.frozen(eq=False)
class ComingScores:
    """Scores of a draw on their way to the host."""

    scores: PackedScores
    download: Download

    def read(self) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Wait for them; by row, as often as it is there."""
        return self.scores.read(self.download.wait())


@attrs.define(eq=False)
class Verified:
    """The outcome of an invariant step: `others`, rows that it has given one token, and those that verify (`windows.py`).

    Attributes:
        asked: the plan's `sampling_rows`, which all of these are.
        tentative: those of the others whose token is not verified.
        parts: rows that were drawn together, the places of each, what they have gained (see `sample_and_append`), and their scores.
    """

    others: tuple[int, ...]
    asked: tuple[int, ...]
    tentative: AbstractSet[int] = frozenset()
    parts: list[tuple[tuple[int, ...], int, Download, ComingScores | None]] = attrs.field(factory=list)

    def join(self, result: StepResult) -> StepResult:
        """The result of all rows, `result` being that of the others; waits for it."""
        if not self.parts:
            return result
        gained = {row: [token] for row, token in zip(self.others, result.token_ids, strict=True)}
        logprobs, drafts = {**result.logprobs}, dict[int, int]()
        for rows, width, coming, scores in self.parts:
            found, compared = gains(coming.wait().tolist(), len(rows), width)
            gained.update(zip(rows, found, strict=True))
            drafts.update(zip(rows, compared, strict=True))
            if scores is not None:
                logprobs |= {row: each[: len(gained[row])] for row, each in scores.read().items()}
        return attrs.evolve(
            result,
            token_ids=[token for row in self.asked for token in gained[row]],
            counts=tuple([len(gained[row]) for row in self.asked]),
            drafts=tuple([drafts.get(row, 0) for row in self.asked]),
            logprobs=logprobs,
            broken=tuple([row for row in self.asked if min(gained[row], default=0) < 0] + [*result.broken]),
        )


def gains(arrived: Sequence[int], count: int, width: int) -> tuple[list[list[int]], list[int]]:
    """The tokens that each of so many rows with `width` places has gained, and how many drafts it had, see `sample_and_append`."""
    columns = width + 2
    starts = [columns * place for place in range(count)]
    return [[*arrived[at + 2 : at + 2 + arrived[at]]] for at in starts], [arrived[at + 1] for at in starts]


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
        verified: of an invariant step beside ordinary ones, what comes of it.
        is_empty: whether the step computes nothing.
    """

    step: int
    slot: int | None = None
    drawn_rows: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    scores: ComingScores | None = None
    prompt_scores: tuple[PromptScores, ...] = ()
    late: CudaTicket | None = None
    pooled: tuple[tuple[Pooled, Download], ...] = ()
    routed: tuple[Routed, ...] = ()
    width: int = 0
    asked: tuple[int, ...] = ()
    admissions: int = 0
    verified: Verified | None = None
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
        if self.verified is not None:
            result = self.verified.join(result)
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
        logprobs = {} if self.scores is None else self.scores.read()
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
        drawn, rows = self.drawn_rows, self.rows
        arrived, drafts = gains(arrivals.wait(slot, len(drawn) * (self.width + 2)), len(drawn), self.width)
        gained_of, drafts_of = dict(zip(drawn, arrived, strict=True)), dict(zip(drawn, drafts, strict=True))
        gained = [gained_of.get(row, []) for row in rows]
        return StepResult(
            token_ids=[token for each in gained for token in each],
            counts=tuple(map(len, gained)),
            drafts=tuple([drafts_of.get(row, 0) for row in rows]),
            logprobs={row: scores[: len(gained_of[row])] for row, scores in logprobs.items()},
            broken=tuple(row for row, each in zip(rows, gained, strict=True) if min(each, default=0) < 0),
        )
