"""Events between their port's values and their frames."""

from __future__ import annotations

from nanoserve.adapters.engine_process.wire.schema import (
    AdmittedFrame,
    EventFrame,
    PreemptedFrame,
    Score,
    ScoredFrame,
    TokensFrame,
)
from nanoserve.ports.events import (
    EngineEvent,
    PromptScored,
    SequenceAdmitted,
    SequencePreempted,
    SequenceTimes,
    TokensGenerated,
)
from nanoserve.ports.step import TokenLogprobs


def event_to_frame(event: EngineEvent) -> EventFrame:
    """What is sent of an event."""
    if isinstance(event, TokensGenerated):
        return _tokens_to_frame(event)
    if isinstance(event, SequenceAdmitted):
        return AdmittedFrame(event.request_id, event.index, event.row, event.num_cached_tokens, event.resumed)
    if isinstance(event, SequencePreempted):
        return PreemptedFrame(event.request_id, event.index)
    scores = tuple([None if each is None else _score(each) for each in event.logprobs])
    return ScoredFrame(event.request_id, event.index, scores)


def event_of_frame(frame: EventFrame) -> EngineEvent:
    """The event that was sent."""
    if isinstance(frame, TokensFrame):
        return _tokens_of_frame(frame)
    if isinstance(frame, AdmittedFrame):
        return SequenceAdmitted(
            frame.request_id, frame.index, frame.row, frame.num_cached_tokens, frame.resumed
        )
    if isinstance(frame, PreemptedFrame):
        return SequencePreempted(frame.request_id, frame.index)
    scores = tuple([None if each is None else TokenLogprobs(*each) for each in frame.logprobs])
    return PromptScored(frame.request_id, frame.index, scores)


def _tokens_to_frame(event: TokensGenerated) -> TokensFrame:
    times = event.times
    return TokensFrame(
        event.request_id,
        event.index,
        event.token_ids,
        event.text,
        tuple([_score(each) for each in event.logprobs]) if event.logprobs else (),
        event.finish_reason,
        event.stop,
        event.num_generated,
        event.num_cached_tokens,
        None if times is None else (times.arrived, times.first_scheduled, times.first_token, times.finished),
        event.error,
    )


def _tokens_of_frame(frame: TokensFrame) -> TokensGenerated:
    return TokensGenerated(
        frame.request_id,
        frame.index,
        frame.token_ids,
        frame.text,
        tuple([TokenLogprobs(*each) for each in frame.logprobs]) if frame.logprobs else (),
        frame.finish_reason,
        frame.stop,
        frame.num_generated,
        frame.num_cached_tokens,
        None if frame.times is None else SequenceTimes(*frame.times),
        frame.error,
    )


def _score(scores: TokenLogprobs) -> Score:
    return (scores.token_id, scores.logprob, scores.rank, scores.top)
