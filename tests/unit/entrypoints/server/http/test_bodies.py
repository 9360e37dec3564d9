"""Bodies: every way in which one can be wrong is one clear error that names the place."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http.bodies import decode_body, nests_deeper, unknown_fields
from nanoserve.entrypoints.server.http.errors import RequestError, classify
from nanoserve.ports.errors import BadValueError


class Inner(msgspec.Struct):
    text: str = ""


class Body(msgspec.Struct):
    model: str
    count: int = 1
    temperature: float | None = None
    inner: Inner | None = None
    items: list[Inner] = []
    bias: dict[str, float] = {}
    wire_name: int = msgspec.field(default=0, name="wireName")


def problem_of(body: bytes, rules: BoundSettings | None = None) -> Any:
    with pytest.raises((RequestError, BadValueError)) as raised:
        decode_body(body, Body, rules or BoundSettings())
    return classify(raised.value)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b'{"model": "m"} x', None, "invalid_json"),
        (b'{"model": "m", "temperature": NaN}', None, "invalid_json"),
        (b'{"model": "\\ud800"}', "model", "invalid_json"),
        (b'{"model": "m", "items": [{}, {"text": "a\\udc00b"}]}', "items[1].text", "invalid_json"),
        (b'{"model": "m", "inner": {"\\ud800": 1}}', "inner", "invalid_json"),
        (b'{"model": "\xff"}', "model", "invalid_json"),
        (b'{"model": "m", "fancy": {"a": ["b", "\xff"]}}', "fancy.a[1]", "invalid_json"),
        (b'{"model": "m", "\xff": 1}', None, "invalid_json"),
        (b'{"model": "\xff"', None, "invalid_json"),
        (b'{"model": "m", "fancy": "\\ud800", "count": ' + b"9" * 10_000 + b"}", None, "invalid_json"),
        (b'{"model": "m", "count": ' + b"9" * 10_000 + b"}", "count", "invalid_type"),
        (b"[1]", None, "invalid_type"),
        (b"{}", "model", "missing_field"),
        (b'{"model": null}', "model", "invalid_type"),
        (b'{"model": "m", "count": true}', "count", "invalid_type"),
        (b'{"model": "m", "count": "1"}', "count", "invalid_type"),
        (b'{"model": "m", "temperature": 1e999}', "temperature", "invalid_type"),
        (b'{"model": "m", "inner": {"text": 1}}', "inner.text", "invalid_type"),
        (b'{"model": "m", "items": [{}, {"text": []}]}', "items[1].text", "invalid_type"),
        (b'{"model": "m", "bias": {"a": "b"}}', "bias", "invalid_type"),
        (b'{"model": "m", "inner": ' + b"[" * 100_000, None, "invalid_json"),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_place(body: bytes, param: str | None, code: str) -> None:
    problem = problem_of(body)
    assert (problem.status, problem.param, problem.code) == (400, param, code)
    assert len(problem.message) <= 1000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": "m", "items": {}}', "items: must be a list, got an object"),
        (b'{"model": "m", "count": 1.5}', "count: must be a whole number, got a number"),
        (b'{"model": 3}', "model: must be a string, got a whole number"),
    ],
)
def test_a_wrong_type_is_named_in_english(body: bytes, message: str) -> None:
    assert problem_of(body).message == message


def test_a_good_body_is_read() -> None:
    body = decode_body(b'{"model": "m", "wireName": 3, "inner": {"text": "x"}}', Body, BoundSettings())
    assert (body.model, body.wire_name, body.inner) == ("m", 3, Inner("x"))


def test_what_is_no_text_is_said() -> None:
    problem = problem_of(b'{"model": "m", "fancy": "\xff"}')
    assert problem.message == "fancy: is not text: half a surrogate pair, or bytes that are not UTF-8"
    whole = decode_body('{"model": "\\ud83d\\ude00 \N{GRINNING FACE}"}'.encode(), Body, BoundSettings())
    assert whole.model == "\N{GRINNING FACE} \N{GRINNING FACE}"


def test_unknown_fields_are_warned_of_once_and_refused_where_the_server_is_strict() -> None:
    raw = b'{"model": "m", "fancy": 1, "inner": {"odd": 2}, "items": [{}, {"bad": 3}], "bias": {"a": 1}}'
    with structlog.testing.capture_logs() as logs:
        assert decode_body(raw, Body, BoundSettings()).model == "m"
    assert [(each["log_level"], each["fields"]) for each in logs] == [
        ("warning", ["fancy", "inner.odd", "items[1].bad"])
    ]
    problem = problem_of(raw, BoundSettings(strict_params=True))
    assert (problem.status, problem.param) == (400, "fancy")


def test_the_content_of_an_unknown_field_is_ignored() -> None:
    assert decode_body(b'{"model": "m", "fancy": ' + b"9" * 10_000 + b"}", Body, BoundSettings()).model == "m"


def test_the_warning_of_unknown_fields_is_short_however_many_there_are() -> None:
    members = ", ".join(f'"{name}": 0' for name in range(1000))
    with structlog.testing.capture_logs() as logs:
        decode_body(f'{{"model": "m", {members}}}'.encode(), Body, BoundSettings())
    assert (len(logs[0]["fields"]), logs[0]["count"]) == (16, 1000)


@pytest.mark.parametrize(
    "body",
    [
        b'"\\' * 500_000 + b"[" * 100,
        b'"' * 500_000 + b"[" * 101,
        b"[" * 10**6,
        b'{"model": "' + b"\\" * 10**6,
    ],
)
def test_a_large_hostile_body_is_refused(body: bytes) -> None:
    assert problem_of(body).status == 400


def test_a_field_is_known_by_its_name_on_the_wire() -> None:
    raw = b'{"model": "m", "wireName": 1, "wire_name": 2}'
    assert unknown_fields(raw, Body("m", wire_name=1)) == ["wire_name"]


def depth_of(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    inner = max((depth_of(each) for each in children), default=0)
    return inner + 1 if isinstance(value, dict | list) else 0


VALUES = st.recursive(
    st.text(st.sampled_from('[]{}"\\a'), max_size=5) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(['a"[', "{b"]), inner, max_size=3)
    ),
    max_leaves=30,
)


@given(VALUES, st.integers(0, 6))
def test_depth_is_counted_as_a_parser_would(value: Any, depth: int) -> None:
    assert nests_deeper(json.dumps(value).encode(), depth) == (depth_of(value) > depth)


def test_nesting_beyond_the_bound_is_refused_and_up_to_it_accepted() -> None:
    rules = BoundSettings(max_json_depth=5)
    assert "deeper than 5" in problem_of(b'{"model": "m", "x": ' + b"[" * 5 + b"]" * 5 + b"}", rules).message
    decode_body(b'{"model": "m", "x": ' + b"[" * 4 + b"]" * 4 + b"}", Body, rules)


@pytest.mark.parametrize(
    ("items", "most", "named"),
    [
        ([b'"a"'], 2**16, "names and texts"),
        ([b'"\\\\"'], 2**16, "names and texts"),
        ([b"[]", b"{}", b'"["'], 2**15, "objects and arrays"),
        ([b"{}"], 2**16, "objects and arrays"),
        ([b"1", b"true", b"null"], 2**18 // 3, "members and items"),
        ([b"1e-300", b"1.5", b"false"], 1_000, "exponent"),
        ([b"1E5"], 1_000, "exponent"),
        ([b"0." + b"0" * 300 + b"12", b"7" * 99 + b".1"], 250, "hundred digits"),
    ],
)
def test_more_parts_than_a_body_may_have_are_refused_by_name(
    items: list[bytes], most: int, named: str
) -> None:
    def body_of(count: int) -> bytes:
        return b'{"model": "m", "x": [' + b",".join(items * count) + b"]}"

    decode_body(body_of(most - 10), Body, BoundSettings())
    problem = problem_of(body_of(most + 10))
    assert problem.status == 400
    assert re.search(rf"more than \d+ .*{named}", problem.message)


@pytest.mark.parametrize(
    "value",
    [
        list(range(100_000, 228_000)),
        [
            {
                "role": "tool",
                "content": [{"type": "text", "text": 'an "answer", [{' * 30}],
                "calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a": [1, "b"]}' * 20}}],
            }
        ]
        * 2_000,
        '漢字\\"[{,1e5 ' * 200_000,
        {str(number): -0.5 for number in range(60_000)},
    ],
)
def test_what_large_bodies_of_clients_hold_is_accepted(value: object) -> None:
    for ascii_only in (True, False):
        body = json.dumps({"model": "m", "x": value}, ensure_ascii=ascii_only).encode()
        decode_body(body, Body, BoundSettings())


def test_a_server_with_larger_bodies_accepts_more_parts() -> None:
    body = b'{"model": "m", "x": [' + b"1," * 300_000 + b"1]}"
    assert "more than 262144 members" in problem_of(body).message
    decode_body(body, Body, BoundSettings(max_body_size=8 << 20))


def test_a_server_with_small_bodies_accepts_dense_ones() -> None:
    decode_body(b'{"model": "m", "x": [' + b'"",' * 300 + b"1]}", Body, BoundSettings(max_body_size=1024))
