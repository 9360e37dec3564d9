"""Errors that crossed from the engine's process by name, made into errors again."""

from __future__ import annotations

from typing import Final

from nanoserve.ports.engine_link import Failed, Refused
from nanoserve.ports.errors import (
    BadValueError,
    DuplicateRequestError,
    ModelLoadError,
    NanoserveError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
    RequestTooLargeError,
    StepFailedError,
    UnknownRequestClassError,
)

_KNOWN: Final[dict[str, type[NanoserveError]]] = {
    known.__name__: known
    for known in (
        DuplicateRequestError,
        ModelLoadError,
        OutOfMemoryError,
        PromptTooLongError,
        QueueFullError,
        RequestTooLargeError,
        StepFailedError,
        UnknownRequestClassError,
    )
}


def refusal_error(refused: Refused) -> NanoserveError:
    """What the engine raised at its door; an error that is not made for clients becomes a plain `NanoserveError`."""
    if refused.error == BadValueError.__name__:
        return _bad_value(refused.parameter or "request", refused.message)
    return _KNOWN.get(refused.error, NanoserveError)(refused.message)


def start_error(failed: Failed) -> NanoserveError:
    """What the engine's start failed with."""
    if failed.error == BadValueError.__name__:
        parameter, separator, _ = failed.message.partition(": ")
        return _bad_value(parameter if separator else "settings", failed.message)
    return _KNOWN.get(failed.error, NanoserveError)(failed.message)


def _bad_value(parameter: str, message: str) -> BadValueError:
    return BadValueError(parameter, message.removeprefix(f"{parameter}: "))
