"""The playground: how an answer is shown, what a screen reader hears of it, and what is said of JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.entrypoints.page.node import run_node


def speak(pieces: list[str]) -> list[str]:
    """What is said of an answer of which a piece comes every hundredth of a second, and the end two seconds later."""
    said: list[str] = run_node("announcer", json.dumps(pieces))[0]
    return said


def test_a_fast_answer_is_told_once_a_second_in_whole_sentences() -> None:
    pieces = [piece for number in range(300) for piece in ("Line ", f"{number}", ". ")]
    said = speak(pieces)
    assert 8 <= len(said) <= 12
    assert " ".join(said) == "".join(pieces) + "Stopped."
    assert all(each.endswith(".") for each in said)


def test_a_whole_sentence_does_not_wait_for_what_follows() -> None:
    assert speak(["Hel", "lo there. Now"]) == ["Hello there.", "Now Stopped."]


def test_what_never_ends_a_sentence_is_told_at_the_end() -> None:
    assert speak(["word "] * 500) == ["word " * 499 + "word Stopped."]


def test_nothing_is_lost_and_what_comes_together_is_shown_together() -> None:
    [shown] = run_node("pacing")
    assert [each for pieces in shown for each in pieces] == list(range(1000))
    assert all(shown)
    assert len(shown) <= 10


CASES: Final[dict[str, list[Any]]] = json.loads(Path(__file__).with_name("json_cases.json").read_text())
"""Faults: texts and what is said. Misfits: a schema, a value that fits, one that does not, and what is said. Shapes and tools: values and what is said."""


def ask(name: str, questions: list[Any]) -> list[Any]:
    """Many questions of one kind to the page's modules."""
    return run_node("json", lines=[json.dumps([name, each]).encode() for each in questions])


def test_the_first_fault_of_a_text_is_named_with_its_place() -> None:
    assert ask("fault", [text for text, _ in CASES["faults"]]) == [fault for _, fault in CASES["faults"]]


def test_arguments_that_come_in_pieces_look_as_if_they_had_come_whole() -> None:
    dice = random.Random(1)
    values = [random_value(dice, 4) for _ in range(60)]
    texts = [json.dumps(each, indent=dice.choice([None, 1])) for each in values]
    shown = ask("lines", [pieces_of(dice, each) for each in texts])
    assert ["".join(each) for each in shown] == [json.dumps(each, indent=2) for each in values]
    assert sum(len(each) > 2 for each in shown) > 20


def test_what_does_not_fit_a_schema_is_said_with_its_place() -> None:
    (_, *misfits) = all_of_them = CASES["misfits"]
    good = ask("fits", [[schema, value] for schema, value, _, _ in all_of_them])
    bad = ask("fits", [[schema, value] for schema, _, value, _ in misfits])
    assert [each["fault"] for each in good] == [None] * len(all_of_them)
    assert [each["fault"] for each in bad] == [fault for *_, fault in misfits]
    assert not any(each["unchecked"] for each in (*good, *bad))


def test_what_is_not_checked_is_said() -> None:
    elsewhere = {"format": "date", "title": "t", "properties": {"a": {"$ref": "other.json"}}}
    bomb = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}}
    checked = ask("fits", [[elsewhere, {"a": 1}], [bomb, 1]])
    assert [each["fault"] for each in checked] == [None, None]
    assert [each["unchecked"] for each in checked] == [["$ref", "format"], ["what is too deep or too much"]]


@pytest.mark.parametrize(("kind", "cases"), [("shape", CASES["shapes"]), ("tools", CASES["tools"])])
def test_what_is_no_schema_and_no_tool_is_named(kind: str, cases: list[tuple[Any, str | None]]) -> None:
    assert ask(kind, [value for value, _ in cases]) == [fault for _, fault in cases]


def random_value(dice: random.Random, depth: int) -> Any:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice([1, -2.5, True, None, "", "a b", 'quote " and \\', "{[,:]}", "\u00e9\n"])
    inside = [random_value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return inside if dice.random() < 0.5 else {f'k"{place}': each for place, each in enumerate(inside)}


def pieces_of(dice: random.Random, text: str) -> list[str]:
    cuts = sorted(dice.sample(range(len(text) + 1), min(len(text), dice.randrange(6))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
