"""The input of a call is an object whatever the model writes, and the same however it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.entrypoints.server.protocols.anthropic.writer import INVALID, InputJson, read_input

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def sent(pieces: list[str]) -> str:
    reader = InputJson()
    return "".join(map(reader.push, pieces)) + reader.close()


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_an_object_is_itself(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    assert read_input(json.dumps(value, indent=indent, ensure_ascii=ascii_only)) == value


@given(OBJECTS, st.data())
def test_a_text_that_breaks_off_is_an_object_with_all_that_was_written(
    value: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    assert read_input(cut)[INVALID] == cut


@given(st.text(alphabet='{}[]",:\\u d8/en1-.\n', max_size=40), st.data())
def test_pieces_make_no_difference(tail: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", "{", '{"a":', '{"a": [1,', '{"a": "'])) + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = sent([text])
    assert sent(pieces) == whole
    try:
        expected = json.loads(text, strict=False)
    except ValueError:
        expected = None
    found = json.loads(whole or "{}")
    assert isinstance(found, dict)
    if isinstance(expected, dict) and "\\ud" not in text.lower():
        assert found == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ('{"a": 1} and more', {"a": 1}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"city": Rome}', {}),
        ('{"a": 1, "city": Rome}', {"a": 1}),
        ('{"city": "Rom', {"city": "Rom"}),
        ('{"a": {"b": [1, {"c', {"a": {"b": [1, {}]}}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": "\\x"}', {"a": ""}),
        ('{"a": "\\ud800"}', {"a": ""}),
        ("[1, 2]", {}),
        ("no JSON", {}),
        ('{"a": ' + "[" * 5000, None),
    ],
)
def test_what_is_valid_of_it_stays(text: str, found: dict[str, Any] | None) -> None:
    read = read_input(text)
    told = read.pop(INVALID, None)
    assert told in (None, text)
    assert found is None or read == found
    json.dumps(read, ensure_ascii=False).encode()
