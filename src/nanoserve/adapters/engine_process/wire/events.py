"""The compact form of the events, which are sent for every token: arrays without field names, checked on arrival.

Each class of event has a struct with the same fields in the same order, made from it here.
"""

from __future__ import annotations

import operator
import typing
from typing import Any, Final

import msgspec

from nanoserve.ports.events import EngineEvent

_KINDS: Final[tuple[type, ...]] = typing.get_args(EngineEvent)


def _frame(kind: type, tag: int) -> type[msgspec.Struct]:
    fields = list(typing.get_type_hints(kind).items())
    return msgspec.defstruct(f"{kind.__name__}Frame", fields, tag=tag, array_like=True, gc=False)


_FRAMES: Final = tuple([_frame(kind, tag) for tag, kind in enumerate(_KINDS)])
_KIND_OF: Final = dict(zip(_FRAMES, _KINDS, strict=True))
_FRAME_OF: Final = {
    kind: (frame, operator.attrgetter(*frame.__struct_fields__)) for frame, kind in _KIND_OF.items()
}
EVENT_FRAME: Final[Any] = typing.Union[_FRAMES]  # noqa: UP007 - made of classes that only exist at run time


def event_to_frame(event: EngineEvent) -> msgspec.Struct:
    """What is sent of an event."""
    frame, values = _FRAME_OF[type(event)]
    return frame(*values(event))


def event_of_frame(frame: msgspec.Struct) -> EngineEvent:
    """The event that was sent."""
    event: EngineEvent = _KIND_OF[type(frame)](*msgspec.structs.astuple(frame))
    return event
