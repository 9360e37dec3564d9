"""What the playground says of JSON: where a text has its first fault, how arguments look while they come, what fits a schema."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest

from tests.unit.entrypoints.page.node import run_node

SCRIPT: Final = """
import { createInterface } from "node:readline";
import { JsonProblem, LineBreaker, readJson } from "./page/json_text.js";
import { checkValue } from "./page/schema_check.js";
import { schemaFault } from "./page/schema_shape.js";
import { toolsFault } from "./page/tool_list.js";
const asked = {
  fault(text) {
    try {
      readJson(text);
      return null;
    } catch (error) {
      if (!(error instanceof JsonProblem)) throw error;
      return error.message;
    }
  },
  lines(pieces) {
    const breaker = new LineBreaker();
    return pieces.map((piece) => breaker.add(piece));
  },
  fits: ([schema, value]) => checkValue(value, schema),
  shape: (schema) => schemaFault(schema, "$"),
  tools: toolsFault,
};
for await (const line of createInterface({ input: process.stdin })) {
  const [name, given] = JSON.parse(line);
  console.log(JSON.stringify(asked[name](given)));
}
"""
FAULTS: Final = {
    "": "line 1, column 1: expected a value, found the end",
    '{"a": 1,}': "line 1, column 9: expected a name in quotes, found }",
    '{"a" 1}': "line 1, column 6: expected a colon, found 1",
    '{\n  "a": 1\n  "b": 2}': 'line 3, column 3: expected a comma or }, found the text "b"',
    "[1 2]": "line 1, column 4: expected a comma or ], found 2",
    "[1, tru]": "line 1, column 5: expected a value, found tru",
    "[01]": "line 1, column 2: expected a value or ], found 01",
    "{a: 1}": "line 1, column 2: expected a name in quotes or }, found a",
    '{"a": "b': "line 1, column 7: expected a value, found a text without its second quote",
    '["a\\q"]': "line 1, column 2: expected a value or ], found a text with a line break or a wrong \\ in it",
    "[1]]": "line 1, column 4: expected nothing more, found ]",
    "{]": "line 1, column 2: expected a name in quotes or }, found ]",
    '{"a": [1': "line 1, column 9: expected a comma or ], found the end",
}
TREE: Final[dict[str, Any]] = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "size": {"minimum": 1}}}},
}
POINT: Final[dict[str, Any]] = {
    "properties": {"x": {"type": "number"}},
    "required": ["x"],
    "patternProperties": {"^_": {"type": "string"}},
    "additionalProperties": False,
}
MISFITS: Final[list[tuple[Any, Any, Any, str]]] = [
    (True, 1, None, ""),
    ({"type": "integer"}, 2.0, "a", "the whole must be integer, is string"),
    ({"type": "number"}, 1, True, "the whole must be number, is boolean"),
    ({"type": ["string", "null"]}, None, [], "the whole must be string or null, is array"),
    ({"enum": [{"a": 1, "b": 2}, "x"]}, {"b": 2, "a": 1}, "y", 'the whole must be one of {"a":1,"b":2}, "x", is "y"'),
    ({"const": [1]}, [1], [2], "the whole must be [1]"),
    (POINT, {"x": 1, "_y": "z"}, {"_y": "z"}, 'the whole needs "x"'),
    (POINT, {"x": 1}, {"x": "1"}, "x must be number, is string"),
    (POINT, {"x": 1}, {"x": 1, "y": 2}, 'the whole has "y", which the schema does not have'),
    (POINT, {"x": 1}, {"x": 1, "_": 2}, "_ must be string, is integer"),
    ({"additionalProperties": {"type": "null"}}, {"a": None}, {"a": 1}, "a must be null, is integer"),
    ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}, "the whole has a member with a name that does not fit"),
    ({"minProperties": 1}, {"a": 1}, {}, "the whole must have at least 1 members"),
    ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}, "the whole may have 1 members"),
    ({"items": {"items": {"type": "string"}}}, [["a"]], [["a"], ["b", 1]], "[1][1] must be string, is integer"),
    ({"prefixItems": [{}], "items": False}, ["a"], ["a", 1], "[1] may not be there"),
    ({"items": [{"type": "null"}]}, [None, 1], [1], "[0] must be null, is integer"),
    ({"contains": {"const": 1}}, [0, 1], [0], "the whole has no element that must be in it"),
    ({"minItems": 2}, [1, 2], [1], "the whole must have at least 2 elements"),
    ({"maxItems": 1}, [1], [1, 2], "the whole may have 1 elements"),
    ({"uniqueItems": True}, [1, "1"], [{"a": 1}, {"a": 1}], "the whole has an element twice"),
    ({"minLength": 2}, "ab", "\U0001f98a", "the whole must have at least 2 characters"),
    ({"maxLength": 1}, "\U0001f98a", "ab", "the whole may have 1 characters"),
    ({"pattern": "^\\-?[0-9]+$"}, "-1", "a", "the whole must match ^\\-?[0-9]+$"),
    ({"minimum": 1}, 1, 0, "the whole must be at least 1"),
    ({"maximum": 1}, 1, 2, "the whole must be at most 1"),
    ({"exclusiveMinimum": 1}, 2, 1, "the whole must be above 1"),
    ({"exclusiveMaximum": 1}, 0, 1, "the whole must be below 1"),
    ({"multipleOf": 0.1}, 0.3, 0.35, "the whole must be a multiple of 0.1"),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 1, 3, "the whole must be at most 2"),
    ({"anyOf": [{"type": "null"}, {"minimum": 1}]}, None, 0, "the whole fits none of the possible schemas"),
    ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 1, 2, "the whole must fit exactly one of the possible schemas"),
    ({"not": {"type": "null"}}, 1, None, "the whole fits what it must not be"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "a", "", "the whole must have at least 1 characters"),
    (TREE, {"next": {"next": {"size": 1}}}, {"next": {"next": {"size": 0}}}, "next.next.size must be at least 1"),
]  # fmt: skip
"""A schema, a value that fits, one that does not, and what is said of that."""
SHAPES: Final[list[tuple[Any, str | None]]] = [
    (True, None),
    (TREE, None),
    (POINT, None),
    ([], "$ must be a schema: an object, true or false"),
    ({"type": "text"}, '$.type must be of object, array, string, number, integer, boolean, null, got "text"'),
    ({"properties": {"a": {"propertes": {}}}}, "$.properties.a.propertes is no keyword of JSON schema"),
    ({"properties": []}, "$.properties must be an object of schemas"),
    ({"required": "a"}, "$.required must be a list of texts"),
    ({"anyOf": [{}, 1]}, "$.anyOf[1] must be a schema: an object, true or false"),
    ({"items": {"enum": []}}, "$.items.enum must be a list of at least one value"),
    ({"minLength": -1}, "$.minLength must be a whole number from 0 on"),
    ({"pattern": "("}, "$.pattern must be a regular expression"),
    ({"patternProperties": {"[": {}}}, '$.patternProperties must have regular expressions as names, got "["'),
]  # fmt: skip
WEATHER: Final[dict[str, Any]] = {"type": "function", "function": {"name": "weather", "parameters": POINT}}


def tool(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


TOOLS: Final[list[tuple[Any, str | None]]] = [
    ([], None),
    ([WEATHER], None),
    (tool(description=None, parameters=None, strict=True), None),
    (WEATHER, "must be a list of tools, in [ and ]"),
    (["weather"], "[0] must be an object"),
    ([WEATHER["function"]], '[0].type must be "function"'),
    ([WEATHER, WEATHER], '[1].function.name: "weather" is the name of two tools'),
    (tool(name="a b"), "[0].function.name must have 1 to 128 letters, digits and _-.:/"),
    (tool(paramters={}), "[0].function.paramters is not known: a function has name, description, parameters, strict"),
    (tool(parameters={"type": "array"}), "[0].function.parameters must be the schema of an object"),
    (tool(parameters={"properties": {"a": 1}}), "[0].function.parameters.properties.a must be a schema: an object, true or false"),
]  # fmt: skip


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Asks the page's modules many questions of one kind, in one process for each kind."""

    def run(name: str, questions: list[Any]) -> list[Any]:
        lines = [json.dumps([name, each]).encode() for each in questions]
        return run_node(SCRIPT, lines, tmp_path_factory.mktemp("node"))

    return run


def test_the_first_fault_of_a_text_is_named_with_its_place(ask: Any) -> None:
    assert dict(zip(FAULTS, ask("fault", list(FAULTS)), strict=True)) == FAULTS


def test_arguments_that_come_in_pieces_look_as_if_they_had_come_whole(ask: Any) -> None:
    dice = random.Random(1)
    values = [random_value(dice, 4) for _ in range(60)]
    texts = [json.dumps(each, indent=dice.choice([None, 1])) for each in values]
    shown = ask("lines", [pieces_of(dice, each) for each in texts])
    assert ["".join(each) for each in shown] == [json.dumps(each, indent=2) for each in values]
    assert sum(len(each) > 2 for each in shown) > 20


def test_what_does_not_fit_a_schema_is_said_with_its_place(ask: Any) -> None:
    good = ask("fits", [[schema, value] for schema, value, _, _ in MISFITS])
    bad = ask("fits", [[schema, value] for schema, _, value, _ in MISFITS[1:]])
    assert [each["fault"] for each in good] == [None] * len(MISFITS)
    assert [each["fault"] for each in bad] == [fault for *_, fault in MISFITS[1:]]
    assert [each["unchecked"] for each in (*good, *bad)] == [[]] * (2 * len(MISFITS) - 1)


def test_what_is_not_checked_is_said(ask: Any) -> None:
    elsewhere = {"format": "date", "title": "t", "properties": {"a": {"$ref": "other.json"}}}
    bomb = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}}
    checked = ask("fits", [[elsewhere, {"a": 1}], [bomb, 1]])
    assert [each["fault"] for each in checked] == [None, None]
    assert [each["unchecked"] for each in checked] == [["$ref", "format"], ["what is too deep or too much"]]


@pytest.mark.parametrize(("kind", "cases"), [("shape", SHAPES), ("tools", TOOLS)])
def test_what_is_no_schema_and_no_tool_is_named(
    ask: Any, kind: str, cases: list[tuple[Any, str | None]]
) -> None:
    assert ask(kind, [value for value, _ in cases]) == [fault for _, fault in cases]


def random_value(dice: random.Random, depth: int) -> Any:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice([1, -2.5, True, None, "", "a b", 'quote " and \\', "{[,:]}", "\u00e9\n"])
    inside = [random_value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return inside if dice.random() < 0.5 else {f'k"{place}': each for place, each in enumerate(inside)}


def pieces_of(dice: random.Random, text: str) -> list[str]:
    cuts = sorted(dice.sample(range(len(text) + 1), min(len(text), dice.randrange(6))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
