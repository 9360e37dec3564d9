"""The errors that cross layers, each with a message for the person who caused it."""

from __future__ import annotations


class NanoserveError(Exception):
    """The root of every error that nanoserve raises on purpose; its text says what, where and how to fix it."""


class BadValueError(NanoserveError, ValueError):
    """A value a caller gave is out of range or of the wrong type; `parameter` names it."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


class RequestRefusedError(NanoserveError):
    """The engine refuses a request; nothing was queued."""


class PromptTooLongError(RequestRefusedError):
    """Prompt and answer do not fit into the context window; `parameter` names what to change, `sizes` are tokens of prompt, answer and context, where known."""

    def __init__(
        self, message: str, parameter: str | None = None, sizes: tuple[int, int, int] | None = None
    ) -> None:
        super().__init__(f"{parameter}: {message}" if parameter else message)
        self.parameter, self.sizes = parameter, sizes


class RequestTooLargeError(RequestRefusedError):
    """The request could never fit into the KV cache, even alone in an empty pool."""


class QueueFullError(RequestRefusedError):
    """The waiting queue of the request's class has reached its bound; try again later."""


class DuplicateRequestError(RequestRefusedError):
    """A request with the same engine key is still alive."""


class UnknownRequestClassError(RequestRefusedError):
    """The request names a class that the engine was not configured with."""


class StepFailedError(NanoserveError):
    """A step could not be computed; `guilty_rows` names the device rows at fault where they are known."""

    def __init__(self, message: str, guilty_rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.guilty_rows = guilty_rows


class RunnerLostError(NanoserveError):
    """No further step can be computed, because a process that every step needs has ended or failed."""


class ModelLoadError(NanoserveError):
    """A model folder is missing, incomplete, corrupt or of an architecture that nanoserve does not know."""


class OutOfMemoryError(NanoserveError):
    """The device cannot hold the weights, or not one maximal request beside them."""


class ServiceUnavailableError(NanoserveError):
    """The service accepts no requests now; `retry_after` is the number of seconds to wait before trying again."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(ServiceUnavailableError):
    """As many requests, or tokens, are waiting as the server's settings allow."""


class EngineLoadingError(ServiceUnavailableError):
    """The engine is starting, or starting again."""


class DrainingError(ServiceUnavailableError):
    """The server is stopping and only finishes accepted requests."""


class EngineDiedError(NanoserveError):
    """The engine ended over a request again, or before it had obeyed, or is not started again."""


class UnknownModelError(NanoserveError):
    """The request names a model that is not served here."""


class ConflictError(NanoserveError):
    """The engine's state does not allow the request now."""


class DeadlineError(NanoserveError):
    """The request's time ended before its answer began."""
