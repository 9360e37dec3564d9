from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.sse import data_frame
from nanoserve.entrypoints.server.protocols.openai.answers import ChatChunk, ChatChunkChoice, ChatDelta
from nanoserve.entrypoints.server.protocols.openai.runs import TextFrames
from nanoserve.ports.request import FinishReason
from tests.unit.entrypoints.server.protocols.openai.frames import events

PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
}


def piece(text: str, end: FinishReason | None = None) -> Piece:
    return Piece("r", 0, (1,), text, (), end, None, 1, 0, None)


def chat_chunk(name: str, index: int, text: str) -> ChatChunk:
    choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
    return ChatChunk(id=name, created=1, model=name, choices=[choice])


@given(name=st.text(), index=st.integers(0, 200), texts=st.lists(st.text(min_size=1), min_size=1))
@example(name="\0", index=0, texts=["a model may be called what fills the gap"])
def test_a_frame_is_what_the_plain_encoder_makes_of_the_whole_chunk(
    name: str, index: int, texts: list[str]
) -> None:
    frames = TextFrames(lambda index, text: chat_chunk(name, index, text), suffices=True)
    assert frames.frame(index, piece("the first one says more")) is None
    for text in texts:
        assert frames.frame(index, piece(text)) == data_frame(chat_chunk(name, index, text))


def test_choices_keep_their_indices() -> None:
    frames = TextFrames(lambda index, text: chat_chunk("m", index, text), suffices=True)
    for index in range(3):
        frames.frame(index, piece("first"))
    for index in range(3):
        assert frames.frame(index, piece("more")) == data_frame(chat_chunk("m", index, "more"))


def test_pieces_that_say_more_than_a_text_are_left_to_the_plain_encoder() -> None:
    frames = TextFrames(lambda index, text: chat_chunk("m", index, text), suffices=True)
    frames.frame(0, piece("first"))
    assert frames.frame(0, piece("")) is None
    assert frames.frame(0, piece("last", FinishReason.LENGTH)) is None
    more_was_asked_for = TextFrames(lambda index, text: chat_chunk("m", index, text), suffices=False)
    assert [more_was_asked_for.frame(0, piece("text")) for _ in range(3)] == [None] * 3


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

    with_text_frames = told()
    assert len(with_text_frames) > 5
    monkeypatch.setattr(TextFrames, "frame", lambda *_: None)
    assert told() == with_text_frames


@pytest.mark.parametrize("path", PATHS)
def test_what_was_asked_for_is_in_every_chunk(raw: httpx.Client, path: str) -> None:
    body = {**PATHS[path], "max_tokens": 9, "ignore_eos": True, "stream": True, "return_token_ids": True}
    usage = {"continuous_usage_stats": True}
    told = events(raw.post(path, json={**body, "stream_options": usage}).text)[:-1]
    chunks = [msgspec.json.decode(each.removeprefix("data: ")) for each in told]
    assert [each["usage"]["completion_tokens"] for each in chunks] == list(range(1, 10))
    assert all(len(each["choices"][0]["token_ids"]) == 1 for each in chunks)
