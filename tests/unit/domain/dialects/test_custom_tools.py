"""Tools that take one text: it comes out of the arguments as it is made, and clients' grammars stand within the answer's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.dialects.client_grammar import embedded
from nanoserve.domain.text.dialects.escaped_regex import AS_JSON, UNCHANGED, WITHOUT_TAGS, as_terminal
from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.input_text import InputText
from nanoserve.domain.text.dialects.parser import Parser
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import CallBegun, InputDelta, Tool
from tests.unit.domain.dialects.cases import HARMONY_TAIL, TOOLS, WRITERS

TEXT = 'SELECT "a\\b" < 1;\n\té 😀\n'


def unwrapped(pieces: list[str]) -> str:
    reader = InputText()
    return "".join([*map(reader.push, pieces), reader.close()])


@given(
    text=st.text(),
    escaped=st.booleans(),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    blank=st.sampled_from(["", " \n"]),
)
def test_the_text_is_the_same_for_any_cut(text: str, escaped: bool, cuts: list[int], blank: str) -> None:
    said = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    written = f'{blank}{{{blank}"input"{blank}:{blank}{json.dumps(text, ensure_ascii=escaped)}{blank}}}'
    ends = sorted(min(cut, len(written)) for cut in cuts)
    assert (
        unwrapped([written[low:high] for low, high in zip([0, *ends], [*ends, len(written)], strict=True)])
        == said
    )
    assert unwrapped(list(written)) == said


@pytest.mark.parametrize(
    "written", ['{"code": "x"}', '{"input": 3}', "x = 1", '{"inp', '{"input": ', "[]", ""]
)
def test_arguments_of_another_form_pass_unchanged(written: str) -> None:
    assert unwrapped(list(written)) == unwrapped([written]) == written


def test_half_a_pair_of_surrogates_is_no_character_and_a_bad_escape_passes() -> None:
    for pieces in ([r'{"input":"\ud83d', r'x\n"}'], [r'{"input":"\ud83dx\n"}']):
        assert unwrapped(pieces) == "\ufffdx\n"
    assert unwrapped([r'{"input":"\ud83d", "b": 1}']) == "\ufffd"
    assert unwrapped([r'{"input":"a\qb"}']) == r"a\qb"
    assert unwrapped([r'{"input":"a\ud8']) == r"a\ud8"


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_every_dialect_gives_a_custom_tools_text(name: str) -> None:
    dialect = DIALECTS[name]
    custom = Tool.custom("sql", "Runs a query", None)
    tail = HARMONY_TAIL if dialect.channels is not None else ""
    parser = Parser(dialect, tools=(custom, *TOOLS), prompt_tail=tail)
    written = WRITERS[name](("sql", {"input": TEXT}))
    events = [event for each in written for event in parser.feed(each)] + parser.close()
    begun = [each for each in events if isinstance(each, CallBegun)]
    assert [(each.name, each.is_custom) for each in begun] == [("sql", True)]
    deltas = [each.text for each in events if isinstance(each, InputDelta)]
    assert "".join(deltas) == TEXT
    assert len(deltas) > 20, "it comes as it is made"


def test_texts_are_written_as_json_writes_them() -> None:
    assert (
        embedded('start: "a\\"\\n" A // "comment"\nA: "B"i', AS_JSON) == 'start: "a\\\\\\"\\\\n" A \nA: "B"i'
    )
    assert embedded("start: /[a-c]+\\d/s", AS_JSON) == "start: /[a-c]+\\d/s"
    split = embedded('start: line\nline: TEXT LF\nTEXT: /[^\\n]*/\nLF: "\\n"', AS_JSON)
    assert split.startswith("start: line\nline: split_text LF\nsplit_text: ((/[[^")
    assert split.endswith(
        '+/ | "\\\\\\"" | "\\\\\\\\" | "\\\\b" | "\\\\t" | "\\\\f" | "\\\\r")*)\nLF: "\\\\n"'
    )
    assert embedded("%import common.INT\n%ignore WS", AS_JSON) == "%import common.INT\n%ignore WS"
    grammar = 'start: /"[^<]./ "<" // as it is'
    assert embedded(grammar, UNCHANGED) == grammar.partition("//")[0]
    assert "<" in embedded('start: "<" /a<b/', WITHOUT_TAGS)
    assert embedded("start: /[^b]/", WITHOUT_TAGS) == "start: /(?:[[^b]&&[^<]])/"
    assert as_terminal("a/b\\/\n\\n") == r"/(?:a\/b\/\n\n)/"


def steps(definition: str) -> int:
    """The lines that are run to change it."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        embedded(definition, AS_JSON)
    finally:
        sys.settrace(before)
    return count


def test_a_grammar_twice_as_long_takes_twice_the_work() -> None:
    def chain(length: int) -> str:
        return "\n".join(["start: A0", *(f"A{n}: A{n + 1}" for n in range(length)), f"A{length}: /[^a]/"])

    assert steps(chain(100)) < 2.5 * steps(chain(50))
    assert steps("start: " + "1" * 2000) == steps("start: 1")


class CountedText(str):
    __slots__ = ("copied",)

    def __init__(self, _text: str) -> None:
        self.copied = 0

    def __getitem__(self, key: Any) -> str:
        part = super().__getitem__(key)
        self.copied += len(part)
        return part


def test_a_repetition_is_told_from_a_complement_by_the_next_character() -> None:
    definition = CountedText("start: " + '"a"~1 ' * 20)
    assert embedded(definition, AS_JSON) == definition
    assert definition.copied == 20


@pytest.mark.parametrize(
    ("grammar", "word"),
    [
        ("start: <|im_end|>", "token"),
        ("start: <[5]>", "token"),
        ('start: %json {"type": "object"}', "%json"),
        ("%import common (WS, INT)", "import"),
        ("start: A\nA: ~/a/", "complement"),
        ("start: /[a&&[b]]/", "class within a class"),
        ("start: /\\p{Other}/", "cannot be changed"),
        ("start: /\\x{110000}/", "cannot be changed"),
        ("start: /[\\x{ffffffff}]/", "cannot be changed"),
        ("start: /a b/x", "flag x"),
        ("start: /(?x)a b/", "flag x"),
        ("start: /(?=a)b/", "cannot be changed"),
    ],
)
def test_what_cannot_stand_within_another_grammar_is_named(grammar: str, word: str) -> None:
    with pytest.raises(BadValueError, match=word):
        embedded(grammar, AS_JSON)
