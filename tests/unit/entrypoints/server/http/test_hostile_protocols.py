"""Hostile bodies for `/v1/responses` and `/v1/messages`: always a 4xx or an answer, and never anybody else's trouble."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nanoserve.entrypoints.server.protocols.anthropic.body import CreateMessage
from nanoserve.entrypoints.server.protocols.responses.body import CreateResponse
from tests.unit.entrypoints.server.protocols.protocol_world import World, serving

VALUES = [
    "null", "true", "-1", "0", "1e999", "NaN", str(2**63), str(10**400), "0.5", '""', '"\\u0000"', '"\\ud800"',
    '"x"', "[]", "[[]]", "[null]", '[""]', "[0]", "{}", '{"type": "x"}', '{"x": {"y": [1]}}', '[{"type": "text"}]',
    '[{"role": "user", "content": [{"type": "text", "text": "\\u0000"}]}]', "[" * 200 + "]" * 200,
    json.dumps(["a"] * 10_000), json.dumps("x" * 100_000),
]  # fmt: skip
PROTOCOLS: dict[str, tuple[type[CreateResponse | CreateMessage], dict[str, Any]]] = {
    "/v1/responses": (CreateResponse, {"input": "hello", "max_output_tokens": 4}),
    "/v1/messages": (CreateMessage, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("path", PROTOCOLS)
def test_no_value_of_any_field_breaks_the_server(world: World, path: str) -> None:
    kind, sound = PROTOCOLS[path]
    with httpx.Client(base_url=world.url) as client:
        for name, value in itertools.product(kind.__struct_fields__, VALUES):
            others = "".join(
                f", {json.dumps(key)}: {json.dumps(each)}" for key, each in sound.items() if key != name
            )
            body = f'{{"{name}": {value}{others}}}'
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            expected = {200, 400, 404} if name == "model" else {200, 400}
            assert answer.status_code in expected, (name, value[:50], answer.text[:200])
            if answer.status_code == 400:
                assert answer.json()["error"]["message"]
                assert answer.json()["error"]["type"] == "invalid_request_error"
        assert client.post(path, json=sound).status_code == 200
    world.wait_until(lambda: world.is_idle)


@pytest.mark.parametrize(
    "path",
    ["%00", "x" * 4000, "..%2f..", "resp_%F0%9F%98%80", "resp_x/input_items?limit=" + "9" * 30, "a/b/c"],
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_no_path_breaks_the_server(world: World, path: str, method: str) -> None:
    answer = httpx.request(method, f"{world.url}/v1/responses/{path}")
    assert answer.status_code in {400, 404, 405}
    assert answer.json()["error"]["message"]
