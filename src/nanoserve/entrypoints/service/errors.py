"""Errors of the service that are nobody's fault at the wire: the engine is away, full or leaving."""

from __future__ import annotations

from nanoserve.ports.errors import NanoserveError


class ServiceUnavailableError(NanoserveError):
    """The service takes no requests right now; `retry_after` is how many seconds to wait before trying again."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(ServiceUnavailableError):
    """As many requests, or tokens, are waiting as the server was told to let wait."""


class EngineLoadingError(ServiceUnavailableError):
    """The engine is starting, or starting again."""


class DrainingError(ServiceUnavailableError):
    """The server is leaving and finishes only what it has accepted."""


class EngineDiedError(NanoserveError):
    """The engine ended in the middle of an answer, part of which was delivered already."""


class UnknownModelError(NanoserveError):
    """The request names a model that is not served here."""


class DeadlineError(NanoserveError):
    """The request's time was over before any of its answer was there."""
