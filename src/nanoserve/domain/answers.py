"""Turns committed tokens into the events of each client, token by token and at the end.

This runs once per row and turn, so a token without text takes a short path: its event follows at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from nanoserve.domain.scheduling.isolation import by_row
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import InFlightStep, Progress
from nanoserve.domain.sequence import Sequence
from nanoserve.domain.text.stream import NOTHING, IdStream, OutputStream, SilentStream, TextStream
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.events import (
    EngineEvent,
    PromptPooled,
    PromptScored,
    SequenceRouted,
    SequenceTimes,
    TokensGenerated,
)
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepResult, TokenLogprobs


@attrs.define
class Byproducts:
    """The results of a sequence's steps beside its tokens, as far as they are asked for.

    Attributes:
        routed_experts: of its tokens that were computed, one after the other.
        pooled: the vector of its prompt, once a step has yielded it.
    """

    prompt_logprobs: dict[int, TokenLogprobs] = attrs.field(factory=dict)
    routed_experts: bytearray = attrs.field(factory=bytearray)
    pooled: tuple[float, ...] | None = None


class Answers:
    """The output streams of the living sequences. A stop string found in one ends its sequence.

    `tokenizer=None` leaves every text empty. `tell`, if there is one, hears before a step is submitted who has got and lost rows.
    """

    def __init__(self, table: SequenceTable, tokenizer: Tokenizer | None, limits: Limits) -> None:
        self._table, self._tokenizer = table, tokenizer
        self._expert_bytes = math.prod(limits.routed_experts)
        self._streams: dict[Sequence, OutputStream] = {}
        self._byproducts: dict[Sequence, Byproducts] = {}
        self.tell: Callable[[list[EngineEvent]], None] | None = None
        self._num_told = 0

    def take_byproducts(self, flight: InFlightStep, result: StepResult) -> None:
        """Report a step's results other than tokens to living sequences: vectors, scores of prompts, and experts (again after a preemption)."""
        for row, sequence in by_row(flight).items():
            if sequence.finish_reason is not None:
                continue
            made = self._byproducts.setdefault(sequence, Byproducts())
            made.prompt_logprobs.update(result.prompt_logprobs.get(row, {}))
            if row in result.routed_experts:
                found = result.routed_experts[row]
                made.routed_experts[found.first * self._expert_bytes :] = found.data
            made.pooled = result.pooled.get(row, made.pooled)

    def tell_rows(self) -> None:
        """Have early listeners know who has got and lost rows: a step that ends the process reports nothing."""
        if self.tell is not None and len(self._table.notices) > self._num_told:
            self.tell([*self._table.notices[self._num_told :]])
            self._num_told = len(self._table.notices)

    def take_notices(self) -> list[EngineEvent]:
        """Return what has happened to rows and was not told."""
        notices, self._num_told = self._table.notices[self._num_told :], 0
        self._table.notices.clear()
        return [*notices]

    def report(self, gained: list[Progress], events: list[EngineEvent]) -> None:
        """Append the events of one committed step. An answer that cannot be read ends with an error, alone."""
        streams = self._streams
        for sequence, token, score in gained:
            if type(streams.get(sequence)) is SilentStream:
                continue
            try:
                self._report(sequence, token, score, events)
            except Exception as error:  # noqa: BLE001 - whatever a tokenizer raises must not cost its neighbours theirs
                self._streams.pop(sequence, None)
                self._conclude(sequence, FinishReason.ERROR, f"{type(error).__name__}: {error}")

    def report_ends(self, events: list[EngineEvent], waits: Callable[[Sequence], bool] | None = None) -> None:
        """Append the last event of every ended sequence that waits for nothing, and count ended requests."""
        last: dict[str, FinishReason] = {}
        kept = [] if waits is None else [each for each in self._table.ended if waits(each)]
        for sequence in self._table.ended:
            if sequence in kept:
                continue
            stream = self._streams.pop(sequence, None)
            made = self._byproducts.pop(sequence, None) or Byproducts()
            if made.pooled is not None:
                events.append(PromptPooled(sequence.request.request_id, sequence.index, made.pooled))
            if made.routed_experts:
                routed = bytes(made.routed_experts)
                events.append(SequenceRouted(sequence.request.request_id, sequence.index, routed))
            events.append(_tokens_generated(sequence, *(stream.close() if stream else NOTHING)))
            if sequence.request.request_id not in self._table.requests and sequence.finish_reason is not None:
                last[sequence.request.request_id] = sequence.finish_reason
        for reason in last.values():
            self._table.counters.finished_requests[reason] += 1
        self._table.ended[:] = kept

    def _report(
        self, sequence: Sequence, token: int, score: TokenLogprobs | None, events: list[EngineEvent]
    ) -> None:
        stream = self._streams.get(sequence) or self._open(sequence, events)
        if sequence.finish_reason is not None:
            self._push_last(stream, sequence, token, score)
        elif isinstance(stream, IdStream) and sequence.request.stream:
            events.append(_tokens_generated(sequence, (token,), "", () if score is None else (score,)))
        elif stop := stream.push(token, score):
            sequence.stop = stop
            self._conclude(sequence, FinishReason.STOP)
        elif sequence.request.stream:
            token_ids, text, scores = stream.take()
            if token_ids or text:
                events.append(_tokens_generated(sequence, token_ids, text, scores))

    def _conclude(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence because of its text; this overrules the reason of its newest token."""
        finished = self._table.counters.finished
        if sequence.finish_reason is not None:
            finished[sequence.finish_reason] -= 1
            finished[reason] += 1
            sequence.finish_reason, sequence.error = reason, error
        self._table.finish(sequence, reason, error)

    def _open(self, sequence: Sequence, events: list[EngineEvent]) -> OutputStream:
        stream: OutputStream
        if self._tokenizer is not None and sequence.request.sampling.detokenize:
            stream = TextStream(sequence.request, self._tokenizer)
        elif sequence.request.stream or sequence.sampling.logprobs is not None:
            stream = IdStream()
        else:
            stream = SilentStream(sequence.token_ids, sequence.num_prompt_tokens)
        self._streams[sequence] = stream
        begun, length = sequence.request.begun[sequence.index] if sequence.request.begun else ((), 0)
        for token in begun:
            stream.push(token, None)
        if isinstance(stream, TextStream):
            stream.skip(length)
        else:
            stream.take()
        if sequence.sampling.prompt_logprobs is not None and not begun:
            events.append(_prompt_scored(sequence, self._byproducts.get(sequence, Byproducts())))
        return stream

    def _push_last(
        self, stream: OutputStream, sequence: Sequence, token: int, score: TokenLogprobs | None
    ) -> None:
        """The token itself ended the sequence; if it is printed, its text may also complete a stop string."""
        stops = sequence.finish_reason is FinishReason.STOP
        if stops and not sequence.request.sampling.include_stop_str_in_output:
            stream.push_unseen(token, score)
        elif stop := stream.push(token, score):
            sequence.stop = stop
            self._conclude(sequence, FinishReason.STOP)


def _prompt_scored(sequence: Sequence, made: Byproducts) -> PromptScored:
    scores = (None, *(made.prompt_logprobs[position] for position in range(1, sequence.num_prompt_tokens)))
    return PromptScored(sequence.request.request_id, sequence.index, scores)


def _tokens_generated(
    sequence: Sequence, token_ids: tuple[int, ...], text: str, scores: tuple[TokenLogprobs, ...]
) -> TokensGenerated:
    request, reason, times = sequence.request, sequence.finish_reason, None
    if reason is not None:
        times = SequenceTimes(
            sequence.arrived, sequence.first_scheduled, sequence.first_token, sequence.finished
        )
    return TokensGenerated(
        request.request_id,
        sequence.index,
        token_ids,
        text,
        scores,
        reason,
        sequence.stop,
        len(sequence.token_ids) - len(request.prompt_token_ids),
        sequence.num_cached_tokens,
        times,
        sequence.error,
    )
