"""The application of a router: passes each request to a replica, and its answer back as it comes.

Until a part of an answer was passed on, the request can be sent to another replica: when the connection breaks, or when the replica
answers 503. After that the stream ends with an error in its own form, or is cut off where there is no such form.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec
import structlog
from litestar.types import Receive, Scope, Send
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nanoserve.entrypoints.compose.host_names import names_elsewhere
from nanoserve.entrypoints.server.http import sse
from nanoserve.entrypoints.server.http.errors import ErrorBody, Problem, RequestError, send_problem, shape_of
from nanoserve.entrypoints.server.http.sse import ClientLeftError, left, unless
from nanoserve.entrypoints.server.protocols import ERROR_SHAPES
from nanoserve.entrypoints.server.protocols.openai.chat import DONE
from nanoserve_cluster.domain.routing.router import Placement
from nanoserve_cluster.entrypoints.route.bounds import AnswerTooLargeError, Keeping
from nanoserve_cluster.entrypoints.route.fleet import Fleet, Replica, RoutingTable
from nanoserve_cluster.entrypoints.route.prefill import PrefillStage
from nanoserve_cluster.entrypoints.route.prompts import RoutablePrompt, read_prompt, token_ids
from nanoserve_cluster.entrypoints.route.visits import passed_on, request_to, visiting

_SERVER: Final = {b"date", b"server"}
"""Headers that the server of this process writes."""
_STATUSES: Final = range(200, 600)
_BODILESS: Final = {204, 304}
_GONE: Final = Problem(status=502, code="replica_lost", message="The server that made this answer has gone.")
_ENDS: Final = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}
"""How a whole piece of a stream ends."""
_NUMBER: Final = re.compile(rb'"sequence_number": ?(\d+)')
_TAIL: Final = 4096
"""Bytes of a stream that its last event has at the most, if that is to have a number."""
Whole = tuple[int, list[tuple[bytes, bytes]], bytes]
"""An answer: its status, headers and body."""


class _UnansweredError(Exception):
    """Nothing of an answer was passed on; what the replica has refused with, if it answered at all."""

    def __init__(self, reason: str, refusal: Whole | None = None) -> None:
        super().__init__(reason)
        self.refusal = refusal


class Proxy(Collector):
    """An ASGI application.

    Args:
        fleet: the replicas.
        names: host names that requests may use besides addresses and localhost; None allows all.
        max_body_size: bytes.
        prefill: the replicas that compute long prompts for those, if there are some.

    Attributes:
        living: requests that are being answered.
        is_draining: set when the router leaves.
        keeping: the answers that are passed on whole.
    """

    def __init__(
        self,
        fleet: Fleet,
        names: Collection[str] | None,
        max_body_size: int,
        prefill: PrefillStage | None = None,
    ) -> None:
        self.living, self.is_draining, self.keeping = 0, False, Keeping()
        self._fleet, self._prefill = fleet, prefill
        self._names, self._max_body_size = names, max_body_size
        self._ended: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        send = functools.partial(self._send, send)
        # A parser of requests leaves the space behind a value where it is, and a writer of requests refuses it.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        try:
            if path in {"/health", "/readyz", "/livez"}:
                await self._send_health(path, send)
                return
            self._check_host(scope["headers"])
            if path == "/metrics":
                await self._send_metrics(send)
                return
            target = _target(scope)
            body = await _read(receive, self._max_body_size)
            self._check_open()
            self.living += 1
            try:
                await unless(left(receive), self._pass_on(scope, target, body, send), ClientLeftError)
            finally:
                self.living -= 1
        except ClientLeftError:
            return
        except RequestError as error:
            await send_problem(error.problem, scope, receive, send, ERROR_SHAPES)

    async def _send(self, send: Send, message: Any) -> None:
        if self.is_draining and message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    # Answers of its own

    async def _send_health(self, path: str, send: Send) -> None:
        replicas = {each.url: each.obstacle or {"requests": each.requests} for _, each in self._replicas()}
        is_ready = bool(self._fleet.up) and not self.is_draining
        status = 200 if is_ready or path == "/livez" else 503
        content = msgspec.json.encode({"status": "ok" if is_ready else "unavailable", "replicas": replicas})
        await _send_whole(send, status, [(b"content-type", b"application/json")], content)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as of now."""
        ended = CounterMetricFamily(
            "nanoserve:router_requests",
            "Requests sent to a replica: answered, refused (503), broken (the connection), oversized (the answer), "
            "invalid (the request), left (by the client)",
            labels=("replica", "outcome"),
        )
        for labels, count in self._ended.items():
            ended.add_metric(labels, count)
        yield ended
        for name, text, value in (
            ("up", "1 where it gets requests", lambda _, each: each.obstacle is None),
            ("requests_running", "Requests that it has", lambda _, each: each.requests),
            (
                "cached_blocks",
                "Blocks of prefixes that it is believed to have",
                lambda table, each: table.cached_blocks(each.number),
            ),
        ):
            gauge = GaugeMetricFamily(f"nanoserve:router_replica_{name}", text, labels=("replica",))
            for table, each in self._replicas():
                gauge.add_metric((each.url,), value(table, each))
            yield gauge

    def _replicas(self) -> list[tuple[RoutingTable, Replica]]:
        """All of them with the tables that they are in, those that compute prompts last."""
        fleets = [self._fleet] if self._prefill is None else [self._fleet, self._prefill.fleet]
        return [(fleet.table, each) for fleet in fleets for each in fleet.replicas.values()]

    async def _send_metrics(self, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await _send_whole(send, 200, headers, generate_latest(self))

    def _check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Replicas see the router's requests only, so it keeps other sites' pages away for them."""
        if names_elsewhere(headers, self._names) is not None:
            message = "The Host header names another server; if it is this one, start it with --allowed-host."
            raise RequestError(421, message, code="host_not_allowed")

    def _check_open(self) -> None:
        if self.is_draining:
            message = "The router is shutting down and takes no more requests."
            raise RequestError(503, message, code="draining", headers={"retry-after": "5"})

    # Passing on

    async def _pass_on(self, scope: Any, target: bytes, body: bytes, send: Send) -> None:
        tried, prefill = set[int](), self._prefill
        refusal: Whole | None = None
        while self._fleet.up - tried and (placement := await self._place(scope, body, tried)):
            replica = self._fleet.replicas[placement.replica]
            tried.add(replica.number)
            if prefill is not None:
                await prefill.compute(scope, target, body, placement.new_tokens, self._ended)
                prefill = None
            try:
                await self._ask(replica, placement, scope, request_to(replica, scope, target, body), send)
            except _UnansweredError as error:
                refusal, log = error.refusal or refusal, structlog.get_logger()
                log.info("a request goes to another replica", after=replica.url, reason=str(error))
            else:
                return
        if refusal is None:
            message = "No server is there to answer; try again soon."
            raise RequestError(503, message, code="no_replica", headers={"retry-after": "1"})
        await _send_whole(send, *refusal)

    async def _place(self, scope: Any, body: bytes, tried: set[int]) -> Placement | None:
        """Choose a replica, if one is left. The prompt is read for each choice: its ids are too many to keep."""
        prompt = await self._prompt(scope, body)
        if not self._fleet.up - tried:
            return None
        return self._fleet.table.route(prompt.ids or (0,), prompt.affinity, without=tried)

    async def _prompt(self, scope: Any, body: bytes) -> RoutablePrompt:
        prompt, fields = read_prompt(scope["headers"], body)
        fleet = self._fleet
        asked = [
            each for each in fleet.replicas.values() if each.obstacle is None and each.events is not None
        ]
        if not (asked and prompt.ids and fleet.table.reads_prefixes):
            return prompt
        idlest = min(asked, key=lambda each: each.requests)
        ids = await token_ids(fleet.client, idlest.url, scope["path"], scope["headers"], fields)
        return RoutablePrompt(ids=ids, affinity=prompt.affinity) if ids else prompt

    async def _ask(
        self, replica: Replica, placement: Placement, scope: Any, request: httpx.Request, send: Send
    ) -> None:
        """Let one replica answer. Raises `_UnansweredError`."""
        is_begun, tail, kind = False, b"", b""
        log = structlog.get_logger().bind(replica=replica.url)
        with visiting(self._fleet, replica, placement, self._ended) as visit:
            try:
                sent = replica.heard(self._fleet.client.send(request, stream=True))
                async with aclosing(await sent) as answer:
                    if answer.status_code not in _STATUSES:
                        raise httpx.RemoteProtocolError(f"it answers {answer.status_code}")
                    visit.is_computed = answer.is_success
                    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                        visit.outcome = "refused"
                        body = await replica.heard(self.keeping.whole(answer))
                        raise _UnansweredError("it answers 503", (answer.status_code, _passed(answer), body))
                    kind = answer.headers.get("content-type", "").partition(";")[0].encode()
                    async for piece in self._pieces(answer, replica, is_stream=kind in _ENDS):
                        if not is_begun:
                            visit.note_prefilled()
                            await _send_head(send, answer)
                            is_begun = True
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                        tail = (tail + piece)[-_TAIL:]
                    if not is_begun:
                        await _send_head(send, answer)
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    visit.outcome = "answered"
            except httpx.LocalProtocolError as error:
                visit.outcome, visit.is_computed = "invalid", False
                message = f"This request cannot be passed on: {error}"
                raise RequestError(400, message, code="invalid_request") from None
            except AnswerTooLargeError as error:
                visit.outcome = "oversized"
                log.warning("an answer is too large", reason=str(error))
                message = f"A replica was given up for this request: {error}; ask for a stream, or for less."
                raise RequestError(502, message, code="answer_too_large") from None
            except httpx.TransportError as error:
                visit.outcome, visit.is_computed = "broken", visit.is_computed and is_begun
                replica.suspected.set()
                reason = str(error) or type(error).__name__
                if not is_begun:
                    raise _UnansweredError(reason) from None
                log.warning("an answer broke off", reason=reason)
                if kind in _ENDS and tail.endswith(_ENDS[kind]):
                    last = _failure(scope, kind, tail)
                    await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pieces(
        self, answer: httpx.Response, replica: Replica, *, is_stream: bool
    ) -> AsyncIterator[bytes]:
        """A stream as it comes, anything else whole, so that it can be asked for again if it breaks off."""
        if is_stream:
            pieces = answer.aiter_raw()
            while piece := await replica.heard(anext(pieces, b"")):
                yield piece
        elif whole := await replica.heard(self.keeping.whole(answer)):
            yield whole


def _failure(scope: Any, kind: bytes, tail: bytes) -> bytes:
    """The error that ends a stream whose rest is missing, as the protocol of the path writes it; `tail` has the number of the last event."""
    body = shape_of(scope["path"], ERROR_SHAPES, scope["headers"]).of(_GONE)
    if kind != b"text/event-stream":
        return msgspec.json.encode(body) + b"\n"
    if scope["path"].startswith("/v1/responses"):
        number = int([b"-1", *_NUMBER.findall(tail)][-1]) + 1
        told = {"code": _GONE.code, "message": _GONE.message, "param": None, "sequence_number": number}
        return sse.typed_frame("error", **told)
    return sse.data_frame(body) + DONE if isinstance(body, ErrorBody) else sse.named_frame("error", body)


def _target(scope: Any) -> bytes:
    """The path and query to ask a replica for. Raises `RequestError` if they cannot be passed on as they are."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query = scope["query_string"]
    target = path + (b"?" + query if query else b"")
    try:
        httpx.URL("http://replica").copy_with(raw_path=target)
        is_sent_as_it_is = {b".", b".."}.isdisjoint(path.split(b"/"))
    except (httpx.InvalidURL, ValueError):
        is_sent_as_it_is = False
    if not is_sent_as_it_is:
        message = "The target must be a percent-encoded path that begins with / and has no . or .. in it."
        raise RequestError(400, message, code="invalid_target")
    return target


def _passed(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    bodiless = {b"content-length"} if answer.status_code in _BODILESS else set()
    return passed_on(answer.headers.raw, _SERVER | bodiless)


async def _send_head(send: Send, answer: httpx.Response) -> None:
    await send({"type": "http.response.start", "status": answer.status_code, "headers": _passed(answer)})


async def _send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _read(receive: Receive, most: int) -> bytes:
    """A request's body. Raises `ClientLeftError`, and `RequestError` where it is too large."""
    body = bytearray()
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        body += message.get("body", b"")
        if len(body) > most:
            raise RequestError(413, "The body is larger than this router accepts.", code="body_too_large")
        if not message.get("more_body"):
            return bytes(body)
