"""A server as a few synchronous calls: which models it has, what it says of itself, and a chat's answer as it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import attrs
import httpx
import msgspec

from nanoserve.entrypoints.client.address import Address
from nanoserve.entrypoints.client.chunks import DONE, Chunk, error_message, read_chunk
from nanoserve.entrypoints.client.errors import ProtocolError, ServerRefusedError, UnreachableError
from nanoserve.entrypoints.client.events import EventData
from nanoserve.ports.errors import BadValueError

CONNECT_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 600.0
"""How long a server may compute in silence; ours sends comments meanwhile."""


@attrs.frozen(kw_only=True)
class ServedModel:
    """A model that the server offers; `max_model_len` where it says so."""

    id: str
    max_model_len: int | None = None


class OpenAIServer:
    """Talks to one server; raises `UnreachableError`, `ServerRefusedError` or `ProtocolError`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = httpx.Client(
            base_url=address.url,
            headers=address.headers,
            timeout=httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def find_model(self, name: str | None) -> ServedModel:
        """The model of that name, or the first one; raises `BadValueError` where it is not served."""
        served = self._models()
        if name is None:
            return served[0]
        found = [each for each in served if each.id == name]
        if not found:
            names = ", ".join(each.id for each in served)
            raise BadValueError("model", f"{name!r} is not served at {self.address.url}, which has {names}")
        return found[0]

    def facts(self, path: str) -> Mapping[str, Any]:
        """A JSON object that the server may have; empty where it has none."""
        try:
            found = self._get(path)
        except (ServerRefusedError, ProtocolError):
            return {}
        return found if isinstance(found, dict) else {}

    def chat(self, model: str, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Generator[Chunk]:
        """The chunks of an answer; closing the iterator early hangs up."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        with self._failures_told(), self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise refusal(answer.status_code, answer.read())
            events = EventData()
            for piece in answer.iter_bytes():
                for data in events.feed(piece):
                    if data == DONE:
                        return
                    yield _checked(read_chunk(data))
        raise UnreachableError(f"{self.address.url} broke off in the middle of an answer")

    def _models(self) -> list[ServedModel]:
        listed = self._get("/v1/models")
        try:
            found = [
                ServedModel(id=str(each["id"]), max_model_len=each.get("max_model_len"))
                for each in listed["data"]
            ]
        except (TypeError, KeyError, AttributeError):
            raise ProtocolError(f"{self.address.url}/v1/models answers with no list of models") from None
        if not found:
            raise ProtocolError(f"{self.address.url} serves no model")
        return found

    def _get(self, path: str) -> Any:
        with self._failures_told():
            answer = self._client.get(path)
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer.status_code, answer.content)
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.MsgspecError:
            raise ProtocolError(f"{self.address.url}{path} does not answer with JSON") from None

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise UnreachableError(f"nothing answers at {self.address.url}: {error}") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"the connection to {self.address.url} broke: {reason}") from None


def refusal(status: int, body: bytes) -> ServerRefusedError:
    """The error that an answer of this status is, with the hint that helps."""
    hint = "; give it with --api-key or in OPENAI_API_KEY" if status == httpx.codes.UNAUTHORIZED else ""
    return ServerRefusedError(f"the server answered {status}: {error_message(body)}{hint}", status)


def _checked(chunk: Chunk) -> Chunk:
    if chunk.error is not None:
        raise ServerRefusedError(f"the server broke off: {error_message({'error': chunk.error})}")
    return chunk
