"""A server as a few synchronous calls: which models it has, what it says of itself, and a chat's answer as it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import httpx
import msgspec

from nanoserve.entrypoints.client.address import Address
from nanoserve.entrypoints.client.protocol import (
    DONE,
    Chunk,
    EventReader,
    ProtocolError,
    ServerRefusedError,
    UnreachableError,
    error_message,
    read_chunk,
    refusal,
)
from nanoserve.ports.errors import BadValueError

CONNECT_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 600.0
"""How long a server may compute in silence; ours sends comments meanwhile."""


class ServedModel(msgspec.Struct):
    """A model that the server offers; `max_model_len` where it says so."""

    id: str
    max_model_len: int | None = None


class ServedModels(msgspec.Struct):
    """The answer of `/v1/models`."""

    data: list[ServedModel]


@attrs.frozen
class OpenAIServer:
    """Talks to one server; raises `UnreachableError`, `ServerRefusedError` or `ProtocolError`."""

    address: Address
    _client: httpx.Client

    def find_model(self, name: str | None) -> ServedModel:
        """The model of that name, or the first one; raises `BadValueError` where it is not served."""
        listed, url = self._get("/v1/models"), self.address.url
        try:
            models = msgspec.convert(listed, ServedModels).data
        except msgspec.ValidationError:
            raise ProtocolError(f"{url}/v1/models answers with no list of models") from None
        if not models:
            raise ProtocolError(f"{url} serves no model")
        found = [each for each in models if name in {None, each.id}]
        if not found:
            names = ", ".join(each.id for each in models)
            raise BadValueError("model", f"{name!r} is not served at {url}, which has {names}")
        return found[0]

    def facts(self, path: str) -> Mapping[str, Any]:
        """A JSON object that the server may have; empty where it has none."""
        with contextlib.suppress(ServerRefusedError, ProtocolError):
            found = self._get(path)
            return found if isinstance(found, dict) else {}
        return {}

    def chat(self, model: str, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Generator[Chunk]:
        """The chunks of an answer; closing the iterator early hangs up."""
        body = {
            "model": model, "messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **fields,
        }  # fmt: skip
        with (
            unreachable(self.address),
            self._client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise refusal(answer.status_code, answer.read())
            events = EventReader()
            for piece in answer.iter_bytes():
                for _, data in events.feed(piece):
                    if data == DONE:
                        return
                    chunk = read_chunk(data)
                    if chunk.error is not None:
                        message = error_message({"error": chunk.error})
                        raise ServerRefusedError(f"the server broke off: {message}")
                    yield chunk
        raise UnreachableError(f"{self.address.url} broke off in the middle of an answer")

    def _get(self, path: str) -> Any:
        with unreachable(self.address):
            answer = self._client.get(path)
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer.status_code, answer.content)
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.MsgspecError:
            raise ProtocolError(f"{self.address.url}{path} does not answer with JSON") from None


@contextlib.contextmanager
def open_server(address: Address) -> Iterator[OpenAIServer]:
    """The server at an address; connects at the first call."""
    timeout = httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS)
    with httpx.Client(
        base_url=address.url, headers=address.headers, timeout=timeout, trust_env=False
    ) as client:
        yield OpenAIServer(address, client)


@contextlib.contextmanager
def unreachable(address: Address) -> Iterator[None]:
    """Turn a failure of the connection into an `UnreachableError`."""
    try:
        yield
    except httpx.ConnectError as error:
        raise UnreachableError(f"nothing answers at {address.url}: {error}") from None
    except httpx.TimeoutException:
        raise UnreachableError(f"{address.url} says nothing") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise UnreachableError(f"the connection to {address.url} broke: {reason}") from None
