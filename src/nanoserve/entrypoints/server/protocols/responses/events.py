"""The events of a streamed response: their names and their order numbers."""

from __future__ import annotations

from msgspec import Struct

from nanoserve.entrypoints.server.http.logprobs import ChosenToken
from nanoserve.entrypoints.server.protocols.responses.answer import (
    OutputMessage,
    OutputText,
    ResponseObject,
)


class Event(Struct, kw_only=True, tag_field="type"):
    """Something that happened to a response; numbered from 0 within its stream."""

    sequence_number: int = 0


class _Lifecycle(Event, kw_only=True):
    """Carries the whole response as it stands."""

    response: ResponseObject


class ResponseCreated(_Lifecycle, kw_only=True, tag="response.created"):
    """The response exists; always the first event."""


class ResponseInProgress(_Lifecycle, kw_only=True, tag="response.in_progress"):
    """The first token is there."""


class ResponseCompleted(_Lifecycle, kw_only=True, tag="response.completed"):
    """The model came to an end; the last event."""


class ResponseIncomplete(_Lifecycle, kw_only=True, tag="response.incomplete"):
    """The answer was cut at its token bound; the last event."""


class ResponseFailed(_Lifecycle, kw_only=True, tag="response.failed"):
    """The answer could not be finished; the last event."""


class _OfItem(Event, kw_only=True):
    """Is about an item of the output."""

    output_index: int = 0
    item: OutputMessage


class OutputItemAdded(_OfItem, kw_only=True, tag="response.output_item.added"):
    """A message begins."""


class OutputItemDone(_OfItem, kw_only=True, tag="response.output_item.done"):
    """A message is whole."""


class _OfContent(Event, kw_only=True):
    """Is about a part of a message."""

    item_id: str
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(_OfContent, kw_only=True, tag="response.content_part.added"):
    """The text of a message begins."""

    part: OutputText


class ContentPartDone(_OfContent, kw_only=True, tag="response.content_part.done"):
    """The text of a message is whole."""

    part: OutputText


class OutputTextDelta(_OfContent, kw_only=True, tag="response.output_text.delta"):
    """More text; the deltas of a message, joined, are its text."""

    delta: str
    logprobs: list[ChosenToken]


class OutputTextDone(_OfContent, kw_only=True, tag="response.output_text.done"):
    """All of the text."""

    text: str
    logprobs: list[ChosenToken]
