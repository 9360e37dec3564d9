"""The bytes of each protocol's answers: streamed, whole and refused, as the files in `golden` have them."""

from __future__ import annotations

import pathlib
import re
from typing import Final

import httpx
import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.dialects import DIALECTS
from tests.unit.entrypoints.server.protocols.protocol_world import HTTP

GOLDEN: Final = pathlib.Path(__file__).parent / "golden"
_NAMES: Final = re.compile(r"\b(chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{32}")
_TIMES: Final = re.compile(r'"((?:created|completed|created_at|completed_at|\w+_duration)":)(?:\d+|"[^"]*")')


def wire(world: AppWorld, name: str) -> str:
    """What the protocol says to one short request, without names and times."""
    dialect = DIALECTS[name]
    logprobs = dialect.logprobs or {}
    told: list[httpx.Response] = [
        HTTP.post(world.url + dialect.path, json={**dialect.ask(stream=stream, max_tokens=2), **more})
        for stream, more in ((True, {}), (False, {}), (True, logprobs), (False, {"model": "other"}))
    ]
    lines = [f"{each.status_code} {each.headers['content-type']}\n{each.text.rstrip()}\n" for each in told]
    return _TIMES.sub(r'"\1 0', _NAMES.sub(r"\1 0", "\n".join(lines)))


@pytest.mark.parametrize("name", DIALECTS)
def test_the_wire_is_as_it_was(world: AppWorld, name: str) -> None:
    assert wire(world, name) == (GOLDEN / f"{name}.txt").read_text()
