"""A start that fails: the cause, the fix, and last a code that programs and people can look for."""

from __future__ import annotations

from typing import Final

from nanoserve.ports import errors
from nanoserve.ports.errors import BadValueError, NanoserveError

_CODES: Final[tuple[tuple[type[NanoserveError], str], ...]] = (
    (BadValueError, "BAD_SETTING"),
    (errors.ModelLoadError, "MODEL_NOT_LOADED"),
    (errors.OutOfMemoryError, "OUT_OF_MEMORY"),
    (errors.EngineDiedError, "ENGINE_DIED"),
)


class StartError(NanoserveError):
    """The server cannot start; `code` names the kind of reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code


def with_code(error: NanoserveError) -> NanoserveError:
    """The error with its code at the end of its message."""
    if isinstance(error, StartError):
        return error
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "START_FAILED")
    if isinstance(error, BadValueError):
        return BadValueError(error.parameter, f"{str(error).removeprefix(f'{error.parameter}: ')} [{code}]")
    return StartError(str(error), code)
