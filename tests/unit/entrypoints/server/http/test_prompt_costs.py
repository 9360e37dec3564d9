"""A prompt of many ids is read without running Python code for each of them, which would hold all other requests up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nanoserve.entrypoints.server.http.bodies import unknown_fields
from nanoserve.entrypoints.server.protocols.openai.completions import read_prompts
from nanoserve.entrypoints.server.protocols.openai.wire import CompletionBody


def events_of(work: Callable[[], Any]) -> int:
    """Calls of functions, and steps of generators."""
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def body_of(count: int) -> bytes:
    return msgspec.json.encode({"model": "m", "prompt": [*range(count)], "no_field": 1})


@pytest.mark.parametrize(
    "work",
    [
        lambda raw: read_prompts(msgspec.json.decode(raw, type=CompletionBody).prompt),
        lambda raw: unknown_fields(raw, msgspec.json.decode(raw, type=CompletionBody)),
    ],
    ids=["prompts", "unknown fields"],
)
def test_ids_cost_no_calls_each(work: Callable[[bytes], Any]) -> None:
    few, many = body_of(3), body_of(3000)
    work(few)
    assert events_of(lambda: work(many)) == events_of(lambda: work(few))
    assert work(many) in ([tuple(range(3000))], ["no_field"])
