"""A client that leaves while its conversation is rendered: nothing is rendered for it any more."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.unit.entrypoints.server.protocols.talking_world import Talker, TalkTemplate

CALL = {"type": "tool_use", "id": "c", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "sun"}
EDITED = {
    "model": "talker",
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [RESULT]},
    ],
    "context_management": {
        "edits": [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 0}}]
    },
}
COUNTED = {name: value for name, value in EDITED.items() if name != "max_tokens"}
TOKENIZED = {"model": "talker", "messages": [{"role": "user", "content": "hello"}]}
GENERATED = {"model": "talker", "prompt": "hello", "context": [20]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", EDITED),
        ("/v1/messages/count_tokens", COUNTED),
        ("/tokenize", TOKENIZED),
        ("/api/generate", GENERATED),
    ],
)
def test_what_is_left_to_render_is_not_rendered(
    talker: Talker, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    begun, may = threading.Semaphore(0), threading.Event()
    render = TalkTemplate.render

    def held(*given: Any, **named: Any) -> list[int]:
        begun.release()
        may.wait()
        return render(*given, **named)

    monkeypatch.setattr(TalkTemplate, "render", held)
    world, sent = talker[0], json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}"
    try:
        with world.connect() as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + sent)
            begun.acquire()
        world.settle()
    finally:
        may.set()
    assert not begun.acquire(blocking=False)
