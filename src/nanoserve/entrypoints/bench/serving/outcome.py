"""One request and what became of it: clock readings while it runs, latencies afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.client.protocol import DONE, EventReader, ProtocolError, error_message, read_chunk

OK: Final = "ok"
MOST_OF_AN_ERROR: Final = 65_536


@attrs.define(kw_only=True)
class RequestOutcome:
    """Clock readings in seconds; latencies count from the moment that the schedule gave, not from the sending.

    Attributes:
        scheduled: when it was to be sent.
        started: when the client got round to it; what is between is the client's fault.
        arrivals: when each piece of text came.
        ended: when the answer was complete, or failed.
        result: `ok`, the HTTP status of a refusal, or `timeout`, `connection`, `broken off`, `in-band error`, `protocol`.
        message: what the server, or the system, said of a failure.
        prompt_tokens, output_tokens: as the server counts them; output falls back on the pieces.
    """

    scheduled: float
    started: float
    arrivals: list[float] = attrs.field(factory=list)
    ended: float = 0.0
    result: str = OK
    message: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def latencies(self) -> Mapping[str, float]:
        """In milliseconds, of an answer that is complete: ttft, e2e, and tpot and the longest itl where there are two pieces."""
        found = {"ttft": self.arrivals[0] - self.scheduled, "e2e": self.ended - self.scheduled}
        if len(self.arrivals) > 1:
            found["tpot"] = (self.arrivals[-1] - self.arrivals[0]) / max(self.output_tokens - 1, 1)
            found["itl"] = max(self.gaps)
        return {name: 1e3 * seconds for name, seconds in found.items()}

    @property
    def gaps(self) -> list[float]:
        """Seconds between a piece and the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrivals)]

    def record(self, origin: float) -> dict[str, Any]:
        """For the JSON file, in milliseconds since `origin`."""
        return {
            "scheduled": _milliseconds(self.scheduled - origin),
            "started": _milliseconds(self.started - origin),
            "arrivals": [_milliseconds(each - origin) for each in self.arrivals],
            "ended": _milliseconds(self.ended - origin),
            "result": self.result,
            "message": self.message,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


class AnswerReader:
    """Writes down when the pieces of one answer came."""

    def __init__(self, outcome: RequestOutcome) -> None:
        self.outcome = outcome
        self._events = EventReader()
        self._error: bytearray | None = None
        self._is_whole = False

    def begin(self, status: int) -> None:
        """Only 200 is an answer."""
        if status != 200:
            self.outcome.result = str(status)
            self._error = bytearray()

    def feed(self, piece: bytes, now: float) -> None:
        """A piece of text counts when it came; so does the end of an answer that shows no text at all."""
        if self._error is not None:
            if len(self._error) < MOST_OF_AN_ERROR:
                self._error += piece
            return
        for _, data in self._events.feed(piece):
            self._read(data, now)

    def close(self) -> None:
        """The exchange is over: say why it failed, if it did."""
        if self._error is not None:
            self.outcome.message = error_message(bytes(self._error))
        elif self.outcome.result == OK and not self._is_whole:
            self.outcome.result = "broken off"
        self.outcome.output_tokens = self.outcome.output_tokens or len(self.outcome.arrivals)

    def _read(self, data: bytes, now: float) -> None:
        outcome = self.outcome
        if data == DONE or outcome.result != OK:
            return
        try:
            chunk = read_chunk(data)
        except ProtocolError as error:
            outcome.result, outcome.message = "protocol", str(error)
            return
        if chunk.error is not None:
            outcome.result, outcome.message = "in-band error", error_message({"error": chunk.error})
            return
        ends = chunk.finish_reason is not None
        self._is_whole |= ends
        if chunk.text or (ends and not outcome.arrivals):
            outcome.arrivals.append(now)
        if chunk.usage is not None:
            outcome.prompt_tokens = chunk.usage.prompt_tokens
            outcome.output_tokens = chunk.usage.completion_tokens


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)
