"""A server that speaks OpenAI's protocol, ours or another: its address, its answers, and a few synchronous calls."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import httpx
import msgspec

from nanoserve.ports.errors import BadValueError, NanoserveError

KEY_VARIABLE: Final = "OPENAI_API_KEY"
CONNECT_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 600.0
"""How long a server may compute in silence; ours sends comments meanwhile."""
DONE: Final = b"[DONE]"
MOST_EVENT_BYTES: Final = 2**20
MOST_BODY_BYTES: Final = 2**24
_PORTS: Final = {"http": 80, "https": 443}


class UnreachableError(NanoserveError):
    """Nothing answers at the address, or the connection broke."""


class ProtocolError(NanoserveError):
    """The server's answer does not follow OpenAI's protocol."""


class ServerRefusedError(NanoserveError):
    """The server answered with an error; `status` is its number, None for one inside a stream."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@attrs.frozen(kw_only=True)
class Address:
    """A server; `prefix` is the path in front of `/v1`, usually empty. `key` is not shown where this is printed."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    key: str | None = attrs.field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The origin and the prefix."""
        return self.origin + self.prefix

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


def read_address(url: str, key: str | None = None, setting: str = "url") -> Address:
    """Read a URL with or without `/v1`; without a key, the one in the environment is taken. Raises `BadValueError` of the setting."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise BadValueError(setting, f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadValueError(setting, f"must look like http://127.0.0.1:8000, got {url!r}")
    if parts.query or parts.fragment or parts.username:
        raise BadValueError(setting, f"must hold no user, query or fragment, got {url!r}")
    key = key or os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise BadValueError("api_key", "must consist of printable ASCII characters")
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        key=key,
    )


class EventReader:
    """Cuts the body of an event stream into the data of its events, as the WHATWG's standard describes them."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._lines: list[bytes] = []
        self._held = 0  # bytes of `_lines`: adding them up at every piece would be quadratic

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that this piece completes; raises `ProtocolError` for an event without end."""
        is_usual = piece.startswith(b"data: ") and piece.endswith(b"\n\n") and piece.count(b"\n") == 2
        if is_usual and not (self._unfinished or self._lines or b"\r" in piece):
            return [piece[6:-2]]
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        events = []
        for each in lines:
            line = each.removesuffix(b"\r")
            field, _, value = line.partition(b":")
            if field == b"data":
                self._lines.append(value.removeprefix(b" "))
                self._held += len(line)
            elif not line:
                if self._lines:
                    events.append(b"\n".join(self._lines))
                self._lines, self._held = [], 0
        if len(self._unfinished) + self._held > MOST_EVENT_BYTES:
            raise ProtocolError(f"the server sends an event of more than {MOST_EVENT_BYTES:,} bytes")
        return events


class ChunkDelta(msgspec.Struct):
    """New text of a chat's answer."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct):
    """One answer's part of a chunk: `text` in completions, `delta` in chats."""

    text: str | None = None
    delta: ChunkDelta = msgspec.field(default_factory=ChunkDelta)
    finish_reason: str | None = None


class ChunkUsage(msgspec.Struct):
    """Tokens counted by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class CompletionChunk(msgspec.Struct):
    """One event of a streamed answer; fields that are not listed here are ignored."""

    choices: list[ChunkChoice] = []
    usage: ChunkUsage | None = None
    error: Any = None

    @property
    def choice(self) -> ChunkChoice:
        """The first answer's part; an empty one where there is none."""
        return self.choices[0] if self.choices else ChunkChoice()

    @property
    def thought(self) -> str:
        """The new reasoning of the first answer, which servers call by either name or by both."""
        return self.choice.delta.reasoning_content or self.choice.delta.reasoning or ""

    @property
    def said(self) -> str:
        """The new text of the first answer."""
        return self.choice.text or self.choice.delta.content or ""


_DECODER: Final = msgspec.json.Decoder(CompletionChunk)


def read_chunk(data: bytes) -> CompletionChunk:
    """Decode one event; raises `ProtocolError`, and `ServerRefusedError` for an error inside a stream."""
    try:
        chunk = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the server sent what is no chunk ({error}): {data[:200]!r}") from None
    if chunk.error is not None:
        raise ServerRefusedError(f"the server broke off: {error_message({'error': chunk.error})}")
    return chunk


def error_message(body: bytes | Any) -> str:
    """The message inside an error in OpenAI's shape; otherwise the beginning of the answer."""
    found = body
    if isinstance(body, bytes):
        try:
            found = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = body.decode(errors="replace")
    for name in ("error", "message"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return " ".join(str(found).split())[:300] or "no reason given"


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
        """The model of that name, or the first one; raises `BadValueError` if it is not served."""
        url = self.address.url
        try:
            models = msgspec.json.decode(self.get("/v1/models"), type=ServedModels).data
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError(f"{url}/v1/models answers with no list of models") from None
        if not models:
            raise ProtocolError(f"{url} serves no model")
        found = [each for each in models if name in {None, each.id}]
        if not found:
            names = ", ".join(each.id for each in models)
            raise BadValueError("model", f"{name!r} is not served at {url}, which has {names}")
        return found[0]

    def facts(self, path: str) -> Mapping[str, Any]:
        """A JSON object that the server may have; empty if it has none."""
        with contextlib.suppress(ServerRefusedError, msgspec.MsgspecError, UnicodeDecodeError):
            found = msgspec.json.decode(self.get(path))
            return found if isinstance(found, dict) else {}
        return {}

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> Generator[CompletionChunk]:
        """The chunks of an answer; closing the iterator early hangs up."""
        body = {
            "model": model, "messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **fields,
        }  # fmt: skip
        with self._reached(), self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _refusal(answer.status_code, self._body(answer))
            events = EventReader()
            for piece in answer.iter_bytes():
                for data in events.feed(piece):
                    if data == DONE:
                        return
                    yield read_chunk(data)
        raise UnreachableError(f"{self.address.url} broke off in the middle of an answer")

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        with self._reached(), self._client.stream("GET", path) as answer:
            body = self._body(answer)
        if answer.status_code != httpx.codes.OK:
            raise _refusal(answer.status_code, body)
        return body

    def _body(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > MOST_BODY_BYTES:
                raise ProtocolError(f"{answer.url} answers with more than {MOST_BODY_BYTES:,} bytes")
        return bytes(body)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn a failure of the connection into an `UnreachableError`."""
        url = self.address.url
        try:
            yield
        except httpx.ConnectError as error:
            raise UnreachableError(f"nothing answers at {url}: {error}") from None
        except httpx.TimeoutException:
            raise UnreachableError(f"{url} says nothing") from None
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"the connection to {url} broke: {str(error) or type(error).__name__}"
            ) from None


def _refusal(status: int, body: bytes) -> ServerRefusedError:
    hint = "; give it with --api-key or in OPENAI_API_KEY" if status == 401 else ""
    return ServerRefusedError(f"the server answered {status}: {error_message(body)}{hint}", status)


@contextlib.contextmanager
def open_server(address: Address, *, quiet_seconds: float = QUIET_SECONDS) -> Iterator[OpenAIServer]:
    """The server at an address; connects at the first call, and gives up where nothing comes for so long."""
    timeout = httpx.Timeout(quiet_seconds, connect=CONNECT_SECONDS)
    with httpx.Client(
        base_url=address.url, headers=address.headers, timeout=timeout, trust_env=False
    ) as client:
        yield OpenAIServer(address, client)
