"""The input of a call is an object whatever the model writes, and the same however it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.dialects.lenient_json import LenientJson
from nanoserve.entrypoints.server.protocols.anthropic.writer import INVALID, InputJson, read_input


def read(pieces: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The input of a call whose arguments a model writes in pieces: as its stream has it, and whole."""
    lenient, reader = LenientJson(), InputJson()
    made = [*map(lenient.push, pieces), lenient.close()]
    sent = "".join(map(reader.push, made)) + reader.close()
    return json.loads(sent or "{}"), read_input("".join(made))


@given(st.text(alphabet='{}[]",:\\u d8/en1-.\n', max_size=40), st.data())
def test_the_input_is_an_object_streamed_or_not(tail: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", " ", "{", '{"a":', '{"a": [1,', '{"a": "'])) + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    streamed, whole = read(pieces)
    assert isinstance(streamed, dict)
    assert (streamed, whole) == read([text]) == (streamed, streamed)
    json.dumps(streamed, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ('\n {"a": 1} and more', {"a": 1}),
        ('{"city": Rome}', {"city": "Rome"}),
        ('{"city": "Rom', {"city": "Rom"}),
        ('{"a": {"b": [1, {"c', {"a": {"b": [1, {}]}}),
        ('{"a": "\\ud800"}', {"a": "\\ud800"}),
        ("[1, 2]", {INVALID: "[1, 2]"}),
        ("no JSON", {INVALID: "no JSON"}),
    ],
)
def test_what_is_no_object_is_a_member_of_one(text: str, found: dict[str, Any]) -> None:
    assert read([text]) == (found, found)


def test_an_input_too_deep_to_be_read_is_told_as_it_was_written() -> None:
    text = LenientJson.whole('{"a": ' + "[" * 5000)
    assert read_input(text) == {INVALID: text}
