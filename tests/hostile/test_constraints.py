"""Constraints that are heavy, beside four ordinary streams, which must not change; the engine's memory stays in bounds."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.hostile.conftest import KEY
from tests.hostile.neighbours import Neighbours, alone
from tests.process.server_process import ServerProcess

GROWTH = 600 << 20
"""Bytes that both processes may grow by: what may live of grammars, and some for the bodies."""
PATHS = ("/v1/completions", "/v1/chat/completions")


def schema(value: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value}}}


def outputs(**fields: object) -> dict[str, Any]:
    return {"structured_outputs": fields}


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {} for number in range(count)}}


def unlike(count: int) -> dict[str, Any]:
    """Optional properties, none of which has the schema of another one."""
    return {"type": "object", "properties": {f"p{each}": {"maxLength": each} for each in range(count)}}


ENDLESS = {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}
REFUSED = [
    *(outputs(choice=[f"{number}" + "x" * 200_000]) for number in range(26)),
    schema({"const": "x" * 100_000}),
    schema(unlike(600)),
    schema(optional(4000)),
    schema(ENDLESS),
    outputs(grammar="start: T\nT: /(.|\\n)*a.{40}/"),
    outputs(structural_tag={"triggers": 5, "structures": 5}),
]
SERVED = [
    *(
        schema({"enum": [f"{number} and {each} of {each * 7919}" for each in range(7000)]})
        for number in range(4)
    ),
    *(outputs(choice=[f"{number}{each}" + "x" * 8000 for each in range(24)]) for number in range(4)),
    schema(optional(1000)),
    schema(unlike(400)),
    outputs(grammar='start[stop="x"]: /.*/'),
]


def body_of(path: str, fields: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    asked = {"prompt": "x"} if path == PATHS[0] else {"messages": [{"role": "user", "content": "x"}]}
    return {**asked, "max_tokens": 4, "stream": stream, **fields}


@pytest.mark.parametrize("server", ["model"], indirect=True)
def test_heavy_constraints_change_no_neighbour_and_fit_into_memory(server: ServerProcess) -> None:
    family = [
        psutil.Process(server.process.pid),
        *psutil.Process(server.process.pid).children(recursive=True),
    ]
    undisturbed = alone(server, KEY)
    before = sum(each.memory_info().rss for each in family)
    jobs = [
        (status, json.dumps(body_of(path, fields, stream=stream)), path)
        for status, asked in ((400, REFUSED), (200, SERVED))
        for fields in asked
        for path, stream in ((PATHS[0], False), (PATHS[1], True))
    ]
    headers = {"content-type": "application/json"}
    with Neighbours(server, KEY, undisturbed) as neighbours, server.client(KEY) as client:

        def send(job: tuple[int, str, str]) -> tuple[int, int, str]:
            answer = client.post(job[2], content=job[1], headers=headers)
            return job[0], answer.status_code, answer.text[:300]

        with ThreadPoolExecutor(4) as senders:
            answers = list(senders.map(send, jobs))
    grown = sum(each.memory_info().rss for each in family) - before
    assert neighbours.differences == []
    assert [each for each in answers if each[0] != each[1]] == []
    assert Counter(status for _, status, _ in answers) == {400: 2 * len(REFUSED), 200: 2 * len(SERVED)}
    assert grown < GROWTH
    assert server.metrics(KEY)["nanoserve:engine_restarts_total"] == 0
