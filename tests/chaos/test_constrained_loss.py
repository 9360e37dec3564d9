"""The engine is killed while answers are made that must follow a grammar: those that are answered in one come as if nothing had been."""

from __future__ import annotations

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest

from tests.chaos.subject import Subject
from tests.chaos.watching import scrape, until
from tests.patience import PATIENCE

STRIKES: Final = 5
"""On a busy machine all may be answered before the engine is struck."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string", "maxLength": 12},
            "minItems": 6,
            "maxItems": 8,
        },
        "kind": {"enum": ["red", "blue"]},
    },
    "required": ["names", "kind"],
    "additionalProperties": False,
}
JSON: Final = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
THOUGHT: Final = f'start: "<think>" /[^<]{{30,60}}/ "</think>" %json {json.dumps(SCHEMA)}\n'
"""As the grammar of an answer whose reasoning stands before its JSON."""
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "schema": {"response_format": JSON},
    "regex": {"structured_outputs": {"regex": "([a-z]{3,9}[0-9]? ){40}"}},
    "reasoning": {"structured_outputs": {"grammar": THOUGHT}},
    "several": {"response_format": JSON, "n": 3},
}


def bodies() -> list[dict[str, Any]]:
    """One of each, sampled with a seed."""
    return [
        {
            "messages": [{"role": "user", "content": "Name some things."}],
            "max_tokens": 240,
            "temperature": 0.9,
            "seed": seed,
            **fields,
        }
        for seed, fields in enumerate(FIELDS.values())
    ]


def answers(port: int, strike: Any = None) -> list[list[Any]]:
    """What all are answered with, whole; `strike` is done while they run."""
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False) as http,
        ThreadPoolExecutor(len(bodies())) as asking,
    ):
        asked = [asking.submit(http.post, "/v1/chat/completions", json=each) for each in bodies()]
        if strike is not None:
            strike()
        found = [each.result() for each in asked]
    assert [each.status_code for each in found] == [200] * len(found), [each.text for each in found]
    return [
        [(choice["message"], choice["finish_reason"]) for choice in each.json()["choices"]] for each in found
    ]


def test_constrained_answers_survive_the_loss_of_the_engine(subject: Subject) -> None:
    expected = answers(subject.port)
    assert [len(each) for each in expected] == [1, 1, 1, 3]

    def strike() -> None:
        asyncio.run(until(subject.port, lambda seen: seen.steps > before.steps))
        subject.kill_engine(signal.SIGKILL)

    for _ in range(STRIKES):
        before = asyncio.run(scrape(subject.port))
        assert answers(subject.port, strike) == expected
        restarts = before.restarts + 1
        asyncio.run(until(subject.port, lambda seen: seen.restarts == restarts and seen.is_up))  # noqa: B023
        ended = subject.log("the engine has ended")[-1]
        assert ended["lost"] == 0
        if ended["requeued"]:
            return
    pytest.fail("every strike came when all was answered")
