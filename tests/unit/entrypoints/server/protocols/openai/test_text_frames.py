from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoserve.entrypoints.server.http.sse import TextFrames, data_frame


def events(raw: str) -> list[str]:
    """The events of a body: each ends with a blank line."""
    return raw.removesuffix("\n\n").split("\n\n")


PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
}


def chat_frame(name: str, index: int, text: str) -> bytes:
    return data_frame({"id": name, "choices": [{"index": index, "delta": {"content": text}}]})


@given(name=st.text(), indices=st.lists(st.integers(0, 200), min_size=1), text=st.text())
@example(name="\0", indices=[0, 1, 0], text="a model may be called what fills the gap")
def test_a_frame_is_what_the_plain_encoder_makes_of_the_whole_chunk(
    name: str, indices: list[int], text: str
) -> None:
    frames = TextFrames(lambda index, text: chat_frame(name, index, text))
    for index in indices:
        assert frames.of(index, text) == chat_frame(name, index, text)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"n": 2},
        {"stop": ["zz", "qx"]},
        {"return_token_ids": True},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
    ids=str,
)
def test_the_wire_has_what_the_plain_encoder_alone_would_send(
    raw: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    fixed = {"max_tokens": 9, "ignore_eos": True, "seed": 7, "stream": True, "request_id": "same"}

    def told() -> list[str]:
        answer = raw.post(path, json={**PATHS[path], **asked, **fixed}).text
        return sorted(events(re.sub(r'"created":\d+', '"created":0', answer)))

    told()  # the answers that are compared find its prompt in the prefix cache
    with_text_frames = told()
    assert len(with_text_frames) > 5
    monkeypatch.setattr(TextFrames, "of", lambda self, index, text: self._frame(index, text))
    assert told() == with_text_frames
