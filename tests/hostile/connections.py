"""Hostile connections: bytes that are not HTTP, or HTTP that no client library would send."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

import attrs

from tests.hostile.bodies import SOUND

COMPLETIONS = "/v1/completions"
WHOLE = json.dumps(SOUND[COMPLETIONS]).encode()
JSON = b"content-type: application/json\r\n"
PATHS = (
    "/", "//", "/..", "/../../etc/passwd", "/v1/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/..%2f..%2fetc",
    "/static/..%5c..%5cwindows", "/%00", "/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/%ed%a0%80", "/%zz", "/v1/models/%",
    "/v1/models/%0d%0aset-cookie:%20evil=1", "/v1/models?x=%0d%0aevil:1", "/v1/models/" + "a" * 8000, "/" + "a/" * 4000,
    "/v1/models?" + "a=b&" * 4000, "/v1/responses/%00/cancel", "/v1/responses/../models", "/v1/responses//", "/.git/config",
    "/v1/responses/x/input_items?limit=-1", "/v1/responses/x/input_items?limit=101", "/v1/responses/x/input_items?limit=1e999",
    "/v1/responses/x/input_items?limit=" + "9" * 5000, "/v1/responses/x/input_items?order=%00", "/LIVEZ", "/livez/x", "/v1;x/models",
    "/reset_prefix_cache", "/admin", "/debug", "/docs/../openapi.json", "/openapi.json%00", "*", "http://evil.example/v1/models",
    "http://evil.example:99999/", "//evil.example/v1/models", "/\\evil", "/?__proto__[x]=1", "/v1/models#x", "/${jndi:ldap://x}",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "PURGE", "SEARCH")
ENDPOINTS = (*SOUND, "/v1/models", "/v1/responses/x/cancel", "/metrics", "/server_info", "/livez")
CONTENT_TYPES = (
    b"", b"content-type: \r\n", b"content-type: text/plain\r\n", b"content-type: application/x-www-form-urlencoded\r\n",
    b"content-type: multipart/form-data; boundary=x\r\n", b"content-type: application/xml\r\n", b"content-type: */*\r\n",
    b"content-type: application/msgpack\r\n", b"content-type: application/octet-stream\r\n", b"content-type: \xff\xfe\r\n",
    JSON + b"content-encoding: gzip\r\n", JSON + b"content-encoding: br\r\n", JSON + b"content-encoding: x, y\r\n",
)  # fmt: skip
HEADERS = (
    b"x-request-id: a\x0bb\r\n", b"x-request-id: \xff\xfe\r\n", b"x-request-id: " + b"a" * 9000 + b"\r\n", b"x-request-id:\r\n",
    b"x-request-id: evil\r\nx-request-id: evil2\r\n", b"x-request-id: a\rset-cookie: evil=1\r\n", b"x-request-id: %0d%0aevil: 1\r\n",
    b"x-forwarded-for: 1.2.3.4\r\nx-forwarded-proto: https\r\n", b"x-http-method-override: DELETE\r\n", b"accept: image/png\r\n",
    b"accept-encoding: gzip, br, zstd\r\n", b"range: bytes=0-1\r\n", b"if-none-match: *\r\n", b"cookie: a=b\r\n" * 40,
    b"expect: 100-continue\r\n", b"expect: nonsense\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAAA\r\n", b"te: trailers, chunked\r\n",
    b"origin: null\r\n", b"referer: http://evil.example\r\n", b"traceparent: 00-\xff-0-0\r\n", b"baggage: " + b"a=b," * 900 + b"\r\n",
    b"a: " + b"b" * 20_000 + b"\r\n", b"x: y\r\n" * 80, b"folded: a\r\n b\r\n", b"authorization: Bearer \r\n", b"x-api-key: \x01\r\n",
)  # fmt: skip
CHUNKS = (
    b"0\r\n\r\n", b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n", b"2\r\n{}x0\r\n\r\n",
    b"2;" + b"a" * 5000 + b"\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\nx-trailer: evil\r\n\r\n", b"2\r\n{}\r\n0\r\n" + b"t: x\r\n" * 200 + b"\r\n",
    b"\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b"+2\r\n{}\r\n0\r\n\r\n", b" 2\r\n{}\r\n0\r\n\r\n", b"1\r\n{}\r\n0\r\n\r\n",
)  # fmt: skip
RUBBISH = (
    b"\r\n\r\n\r\n\r\n", b"\x00" * 500, b"\xff" * 500, b"GET\r\n\r\n", b"GET /x\r\n\r\n", b"GET /x HTTP/9.9\r\n\r\n", b"GET /x HTTP/0.9\r\n\r\n",
    b"FOO / HTTP/1.1\r\nhost: x\r\n\r\n", b"get / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET  /x  HTTP/1.1\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\n: empty\r\n\r\n", b"GET / HTTP/1.1\r\nbad name: x\r\n\r\n", b"A" * 100_000,
    b"GET / HTTP/1.1\r\nx: \x00\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"CONNECT evil.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"*1\r\n$4\r\nPING\r\n", b"SSH-2.0-x\r\n", b"EHLO x\r\n", b"<policy-file-request/>\x00",
)  # fmt: skip


@attrs.frozen
class HostileConnection:
    """What is sent over one connection.

    Attributes:
        parts: sent one after the other.
        method: of its requests, as answers to HEAD have no body.
        hangs_up: sends no more, and reads on.
        statuses: what may come back; the server may also hang up without a word if `may_be_silent`.
        path: of its requests; decides the shape of errors.
    """

    name: str
    parts: Sequence[bytes]
    statuses: frozenset[int] = frozenset(range(200, 500))
    method: str = "POST"
    path: str = ""
    hangs_up: bool = False
    may_be_silent: bool = False


def head(path: str, key: str, headers: bytes = b"", *, method: str = "POST", version: str = "1.1") -> bytes:
    """The line and headers of a request that may pass the gate and ends its connection."""
    line = (
        f"{method} {path} HTTP/{version}\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    )
    return line.encode() + headers


def sized(body: bytes) -> bytes:
    """The header of a body's length."""
    return f"content-length: {len(body)}\r\n".encode()


def hostile_connections(key: str) -> Iterator[HostileConnection]:
    """All of them; the answers end with the connection."""
    refused = frozenset(range(400, 500))
    for method, path in itertools.product(METHODS, PATHS):
        yield HostileConnection(
            f"{method} {path[:40]}", [head(path, key, method=method) + b"\r\n"], method=method
        )
    for method, path in itertools.product(METHODS, ENDPOINTS):
        sent = [head(path, key, method=method) + b"\r\n"]
        yield HostileConnection(f"{method} {path}", sent, method=method, path=path)
    for path, headers in itertools.product(SOUND, CONTENT_TYPES):
        body = json.dumps(SOUND[path]).encode()
        # Ollama's paths ask for a content type only where a page of another site may have sent the body.
        origin = b"origin: https://evil.example\r\n" if path.startswith("/api/") else b""
        sent = [head(path, key, headers + origin + sized(body)) + b"\r\n" + body]
        yield HostileConnection(f"{path} {headers[:60]!r}", sent, frozenset({400, 415}), path=path)
    for version, headers in itertools.product(("1.0", "1.1"), HEADERS):
        sent = [head(COMPLETIONS, key, headers + JSON + sized(WHOLE), version=version) + b"\r\n" + WHOLE]
        yield HostileConnection(f"{version} {headers[:60]!r}", sent)
    for rubbish in RUBBISH:
        yield HostileConnection(f"{rubbish[:30]!r}", [rubbish], refused, hangs_up=True, may_be_silent=True)
    yield from _bodies(key, refused)
    yield from _in_turn(key)


def _bodies(key: str, refused: frozenset[int]) -> Iterator[HostileConnection]:
    start = head(COMPLETIONS, key, JSON)
    for chunks in CHUNKS:
        sent = [start + b"transfer-encoding: chunked\r\n\r\n" + chunks]
        yield HostileConnection(f"chunks {chunks[:30]!r}", sent, refused)
    for value in (
        b"-1",
        b"1e3",
        b"0x10",
        b"",
        b"9" * 30,
        b"1,1",
        b"+5",
        b"5 5",
        b"NaN",
        b"1844674407370955161",
    ):
        sent = [start + b"content-length: " + value + b"\r\n\r\n" + WHOLE]
        yield HostileConnection(f"length {value!r}", sent, hangs_up=True, may_be_silent=True)
    for headers in (
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
    ):
        sent = [start + headers + b"\r\n" + b"0\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n"]
        yield HostileConnection(f"smuggling {headers!r}", sent, refused, hangs_up=True, may_be_silent=True)
    for end in range(0, len(WHOLE), 5):
        sent = [start + sized(WHOLE) + b"\r\n" + WHOLE[:end]]
        yield HostileConnection(f"left after {end}", sent, refused, hangs_up=True, may_be_silent=True)
    short = [start + sized(WHOLE[:-4]) + b"\r\n" + WHOLE]
    yield HostileConnection("a length too short", short, refused, may_be_silent=True)
    huge = [start + b"content-length: 99999999999\r\n\r\n"]
    yield HostileConnection("a length beyond all bounds", huge, frozenset({413}))


def _in_turn(key: str) -> Iterator[HostileConnection]:
    """Requests behind each other, and requests that drip; the last one ends its connection."""
    live = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    for count in (2, 16, 200):
        sent = [live * count + head("/livez", key, method="GET") + b"\r\n"]
        too_many = count > 100
        yield HostileConnection(f"{count} pipelined", sent, frozenset({200}), may_be_silent=too_many)
    mixed = live + WHOLE + live
    yield HostileConnection("rubbish behind a request", [mixed], frozenset({200, 400}), may_be_silent=True)
    whole = head(COMPLETIONS, key, JSON + sized(WHOLE)) + b"\r\n" + WHOLE
    bytewise = [whole[place : place + 1] for place in range(len(whole))]
    yield HostileConnection("byte by byte", bytewise, frozenset({200}))
