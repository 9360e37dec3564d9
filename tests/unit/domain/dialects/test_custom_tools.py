"""Tools that take one text: it comes out of the arguments as it is made."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.output import InputText
from nanoserve.domain.text.dialects.parser import Parser
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
