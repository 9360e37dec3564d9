"""The router: an ASGI application that reads a request, chooses a replica by a policy of the domain, and passes the answer on.

It stands behind Ray's proxy, which cannot see bodies, and on a port of its own. A request is sent to another replica when one is
lost or refuses it before anything was answered; a stream that breaks off later ends with an error in its protocol's form.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import aiohttp
import attrs
import msgspec
import structlog
import yarl

from nanoserve.domain.routing.prefix_index import PrefixIndex
from nanoserve.domain.routing.router import Placement, Router
from nanoserve.entrypoints.ray.directory import Entry
from nanoserve.entrypoints.server.http.disconnects import ClientLeftError, unless
from nanoserve.entrypoints.server.http.errors import Problem, send_problem, shape_of
from nanoserve.entrypoints.server.protocols import ERROR_SHAPES

POLL: Final = 0.5
"""Seconds between two looks into the directory."""
LOST_AFTER: Final = 8.0
"""Seconds after which a replica that is listed no more is given up, with all that it was answering."""
PATIENCE: Final = 10.0
"""Seconds that a request waits for a replica where there is none."""
WORDS_PER_BLOCK: Final = 16
BLOCKS_PER_REPLICA: Final = 2**15
"""How much of what was sent to a replica is believed to be in its cache still: half a million words of four bytes, a token each."""
_LONGEST_PROMPT: Final = 2**18
_CONNECT_SECONDS: Final = 3.0
_PROMPT_FIELDS: Final = ("tools", "system", "instructions", "messages", "prompt", "input")
_HOP_BY_HOP: Final = {
    *(b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect"),
    *(b"proxy-authorization", b"proxy-connection", b"date", b"server"),
}
_STREAMED: Final = {"text/event-stream", "application/x-ndjson"}
_LOST: Final = "The replica that was answering is gone; ask again."
Send = Callable[[dict[str, Any]], Awaitable[None]]


def prompt_of(body: bytes) -> bytes:
    """What makes up the prompt of a request, whatever else its body holds and in which order."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        fields = msgspec.json.decode(body)
        if isinstance(fields, dict):
            parts = (msgspec.json.encode(fields[name]) for name in _PROMPT_FIELDS if name in fields)
            return b"".join(parts)[:_LONGEST_PROMPT]
    return b""


def words_of(prompt: bytes) -> tuple[int, ...]:
    """What stands for its tokens: its bytes by fours. Equal beginnings of prompts have equal words."""
    return tuple(memoryview(prompt + b"\0" * (4 - len(prompt) % 4)).cast("I"))


class ReplicaLostError(Exception):
    """The directory has given a replica up."""


@attrs.define(eq=False)
class _Known:
    """A replica as the directory lists it; `seen` is when it did last."""

    address: str
    number: int
    seen: float
    lost: asyncio.Event = attrs.field(factory=asyncio.Event)


@attrs.define(eq=False)
class _Asked:
    """A request, and how far its answer is; `media_type` is known once it has begun."""

    scope: Any
    body: bytes
    send: Send
    media_type: str | None = None

    async def begin(self, answer: aiohttp.ClientResponse) -> None:
        self.media_type = answer.content_type
        headers = _passed_on(answer.raw_headers)
        await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def more(self, body: bytes, *, is_last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def break_off(self) -> None:
        """End a stream with an error."""
        path = self.scope["path"]
        problem = Problem(status=502, message=_LOST, code="replica_lost")
        error = msgspec.json.encode(shape_of(path, ERROR_SHAPES).of(problem))
        if self.media_type == "text/event-stream":
            name = b"event: error\n" if path.startswith(("/v1/messages", "/v1/responses")) else b""
            error = name + b"data: " + error + b"\n"
        await self.more(error + b"\n", is_last=True)

    async def refuse(self, problem: Problem) -> None:
        """Answer with an error; nothing else must have been answered."""
        shape = shape_of(self.scope["path"], ERROR_SHAPES)
        await send_problem(problem, self.scope, _nothing, self.send, shape)  # type: ignore[arg-type]


class Door:
    """The application.

    Args:
        policy: a name of the domain's policies.
        listed: asks the directory.
        max_body_size: in bytes.
    """

    def __init__(
        self, policy: str, listed: Callable[[], Awaitable[Sequence[Entry]]], *, max_body_size: int
    ) -> None:
        index = PrefixIndex(BLOCKS_PER_REPLICA)
        self._router = Router(policy, index, block_size=WORDS_PER_BLOCK, draw=random.Random())  # noqa: S311 - breaks ties
        self._listed = listed
        self._max_body_size = max_body_size
        self._known: dict[str, _Known] = {}
        self._ready: dict[int, _Known] = {}
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def open(self) -> Any:
        """Know the replicas from here on."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, trust_env=False
        ) as self._session:
            looking = asyncio.create_task(self._keep_looking())
            try:
                yield
            finally:
                looking.cancel()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; stops when the client leaves."""
        asked = _Asked(scope, b"", send)
        body = await self._read(receive)
        if body is None:
            message = "The body is larger than this server accepts."
            await asked.refuse(Problem(status=413, message=message, code="body_too_large"))
            return
        asked.body = body
        with contextlib.suppress(ClientLeftError):
            await unless(_left(receive), self._answer(asked), ClientLeftError)

    async def _read(self, receive: Any) -> bytes | None:
        pieces, size = [], 0
        while True:
            message = await receive()
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_body_size:
                return None
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def _answer(self, asked: _Asked) -> None:
        """Try one replica after another until one answers."""
        prompt = prompt_of(asked.body)
        words, affinity = words_of(prompt), _affinity(asked, prompt)
        tried: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        refusal: tuple[aiohttp.ClientResponse, bytes] | None = None
        while True:
            if self._ready.keys() <= tried:
                if refusal is not None:
                    await asked.begin(refusal[0])
                    await asked.more(refusal[1], is_last=True)
                    return
                if time.monotonic() >= deadline:
                    problem = Problem(status=503, message="No replica takes requests now; try again later.", code="no_replica", headers={"retry-after": "5"})  # fmt: skip
                    await asked.refuse(problem)
                    return
                await asyncio.sleep(POLL / 5)
                tried.clear()
                continue
            placement = self._router.route(words, affinity, avoid=tried)
            replica = self._ready[placement.replica]
            tried.add(placement.replica)
            try:
                asking = self._ask(asked, replica, placement)
                refusal = await unless(replica.lost.wait(), asking, ReplicaLostError)
                if refusal is None:
                    return
            except (aiohttp.ClientError, OSError, ReplicaLostError) as error:
                structlog.get_logger().warning(
                    "a replica did not answer",
                    address=replica.address,
                    error=f"{type(error).__name__}: {error}",
                )
                self._leave(replica)  # until the directory lists it again
                if asked.media_type is not None:
                    await asked.break_off()
                    return

    async def _ask(
        self, asked: _Asked, replica: _Known, placement: Placement
    ) -> tuple[aiohttp.ClientResponse, bytes] | None:
        """Pass a replica's answer on; one that refuses because it has too much to do, or leaves, is returned instead."""
        scope = asked.scope
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        path = scope.get("raw_path") or scope["path"].encode()
        url = yarl.URL(replica.address + (path + query).decode("ascii"), encoded=True)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in _passed_on(scope["headers"])
        ]
        with self._counted(placement) as note_prefilled:
            async with self._session.request(
                scope["method"],
                url,
                headers=headers,
                data=asked.body or None,
                allow_redirects=False,
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            ) as answer:
                try:
                    if answer.content_type not in _STREAMED:
                        whole = await answer.read()
                        if answer.status == 503:
                            return answer, whole
                        await asked.begin(answer)
                        await asked.more(whole, is_last=True)
                        return None
                    piece = await answer.content.readany()
                    note_prefilled()
                    await asked.begin(answer)
                    while piece:
                        await asked.more(piece)
                        piece = await answer.content.readany()
                    await asked.more(b"", is_last=True)
                finally:
                    answer.close()
        return None

    @contextlib.contextmanager
    def _counted(self, placement: Placement) -> Iterator[Callable[[], None]]:
        """Tell the router's books when the prompt is computed and when all is over, each once."""
        is_prefilled = False

        def note_prefilled() -> None:
            nonlocal is_prefilled
            if not is_prefilled:
                is_prefilled = True
                self._router.note_prefilled(placement, time.monotonic())

        try:
            yield note_prefilled
        finally:
            note_prefilled()
            self._router.note_ended(placement, time.monotonic())

    async def _keep_looking(self) -> None:
        while True:
            try:
                self.note(await self._listed())
            except Exception as error:  # noqa: BLE001 - it is started again elsewhere; until then all stays as it was
                structlog.get_logger().warning("the directory does not answer", error=str(error))
                for known in self._known.values():
                    known.seen = time.monotonic()
            await asyncio.sleep(POLL)

    def note(self, entries: Iterable[Entry]) -> None:
        """What the directory lists now."""
        now = time.monotonic()
        for entry in entries:
            if entry.role != "replica":
                continue
            if entry.address not in self._known:
                self._known[entry.address] = _Known(entry.address, next(self._numbers), now)
            known = self._known[entry.address]
            known.seen = now
            if not entry.is_ready:
                self._leave(known)
            elif known.number not in self._ready:
                self._ready[known.number] = known
                self._router.join(known.number, now)
        for known in [each for each in self._known.values() if now - each.seen > LOST_AFTER]:
            self._leave(known)
            known.lost.set()
            del self._known[known.address]

    def _leave(self, replica: _Known) -> None:
        """No more requests go there."""
        self._ready.pop(replica.number, None)
        self._router.leave(replica.number)


def _affinity(asked: _Asked, prompt: bytes) -> int:
    """Equal for the requests of a session, or where none is named for prompts that begin alike; the same in every router."""
    named = next((value for name, value in asked.scope["headers"] if name == b"x-session-id"), None)
    return zlib.crc32(named if named is not None else prompt[:256])


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    lowered = ((name.lower(), value) for name, value in headers)
    return [(name, value) for name, value in lowered if name not in _HOP_BY_HOP]


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Any:
    """No body is left to be read."""
