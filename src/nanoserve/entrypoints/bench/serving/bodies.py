"""The requests of a load as the bytes that go over the wire, made before anything is timed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from nanoserve.entrypoints.client.address import Address

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
        return self._message(msgspec.json.encode(body))

    def _prompt(self, draw: random.Random) -> dict[str, Any]:
        if self.endpoint == "completions" and self.vocab_size is not None:
            return {"prompt": draw.choices(range(self.vocab_size), k=self.input_len)}
        text = " ".join(draw.choices(WORDS, k=self.input_len))
        return {"prompt": text} if self.endpoint == "completions" else {"messages": [_said_by_user(text)]}

    def _message(self, body: bytes) -> bytes:
        address = self.address
        headers = {
            "host": address.origin.partition("://")[2],
            "content-type": "application/json",
            "accept": "text/event-stream",
            "content-length": str(len(body)),
            **address.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {address.prefix}{PATHS[self.endpoint]} HTTP/1.1\r\n{head}\r\n".encode() + body


def _said_by_user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
