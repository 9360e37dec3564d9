"""What can go wrong between our programs and a server."""

from __future__ import annotations

from nanoserve.ports.errors import NanoserveError


class UnreachableError(NanoserveError):
    """Nothing answers at the address, or the connection broke."""


class ProtocolError(NanoserveError):
    """The server's answer is not what OpenAI's protocol says."""


class ServerRefusedError(NanoserveError):
    """The server answered with an error; `status` is its number, None for one inside a stream."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
