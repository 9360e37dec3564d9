"""One request of a load: the bytes that go over the wire, made before anything is timed, and what became of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import attrs
import msgspec

from nanoserve.entrypoints.client.server import (
    DONE,
    Address,
    EventReader,
    ProtocolError,
    ServerRefusedError,
    error_message,
    read_chunk,
)

UNKNOWN_VOCABULARY: Final = 1000
"""Ids below this are in every vocabulary; used where the server does not say how large its own is."""
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body"
)
WORDS: Final = tuple(_TEXT.split())
"""Mostly one token each."""
PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
OK: Final = "ok"
MOST_OF_AN_ERROR: Final = 65_536


@attrs.frozen(kw_only=True)
class RequestShape:
    """What every request of a load has in common.

    Attributes:
        vocab_size: prompts of ids are drawn below this; None draws words, for servers that take no ids.
        fields: sampling parameters, sent as they are.
    """

    address: Address
    endpoint: str
    model: str
    input_len: int
    output_len: int
    vocab_size: int | None
    fields: Mapping[str, Any]

    def draw(self, draw: random.Random) -> bytes:
        """One request with a prompt of its own."""
        body = {
            "model": self.model,
            **self._prompt(draw),
            "max_tokens": self.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        content = msgspec.json.encode(body)
        headers = {
            "host": self.address.origin.partition("://")[2],
            "content-type": "application/json",
            "accept": "text/event-stream",
            "content-length": str(len(content)),
            **self.address.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.address.prefix}{PATHS[self.endpoint]} HTTP/1.1\r\n{head}\r\n".encode() + content

    def _prompt(self, draw: random.Random) -> dict[str, Any]:
        if self.endpoint == "completions" and self.vocab_size is not None:
            return {"prompt": draw.choices(range(self.vocab_size), k=self.input_len)}
        text = " ".join(draw.choices(WORDS, k=self.input_len))
        return (
            {"prompt": text}
            if self.endpoint == "completions"
            else {"messages": [{"role": "user", "content": text}]}
        )


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
    started: float = 0.0
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
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    def record(self, origin: float) -> dict[str, Any]:
        """For the JSON file, in milliseconds since `origin`."""

        def since(moment: float) -> float:
            return round(1e3 * (moment - origin), 3)

        moments = {name: since(getattr(self, name)) for name in ("scheduled", "started", "ended")}
        return attrs.asdict(self) | moments | {"arrivals": [since(each) for each in self.arrivals]}


class AnswerReader:
    """Writes down when the pieces of one answer came."""

    def __init__(self, outcome: RequestOutcome) -> None:
        self.outcome = outcome
        self._events = EventReader()
        self._error: bytearray | None = None
        self._is_whole = False

    def begin(self, status: int) -> None:
        """The head is complete; only 200 is an answer."""
        if status != 200:
            self.outcome.result = str(status)
            self._error = bytearray()

    def feed(self, piece: bytes, now: float) -> None:
        """A piece of the body, read at `now`.

        A piece of text counts when it came; so does the end of an answer that shows no text at all.
        """
        if self._error is None:
            for data in self._events.feed(piece):
                self._read(data, now)
        elif len(self._error) < MOST_OF_AN_ERROR:
            self._error += piece

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
        except ServerRefusedError as error:
            outcome.result, outcome.message = "in-band error", str(error)
            return
        ends = chunk.choice.finish_reason is not None
        self._is_whole |= ends
        if chunk.said or chunk.thought or (ends and not outcome.arrivals):
            outcome.arrivals.append(now)
        if chunk.usage is not None:
            outcome.prompt_tokens = chunk.usage.prompt_tokens
            outcome.output_tokens = chunk.usage.completion_tokens
