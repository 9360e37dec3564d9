"""Keywords of JSON schemas that the grammar library lacks: said otherwise, left out, or refused with where they stand."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from nanoserve.adapters.llguidance.reading import check
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from tests.unit.adapters.llguidance.vocabularies import (
    accepts,
    allowed,
    byte_level,
    compiled,
    error_of,
    grammars_of,
)

TOKENIZER = byte_level()
GRAMMARS = grammars_of(TOKENIZER)
S: dict[str, Any] = {"type": "string"}
INT: dict[str, Any] = {"type": "integer"}
D4 = "http://json-schema.org/draft-04/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
A = {"type": "array", "items": INT}
OBJ = {"type": "object", "properties": {"a": INT, "b": INT}, "additionalProperties": False}
TEXTS = ["", "a", "ab", "abc", 1, None]
OBJECTS = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": "x"}, {"c": 1}]
ARRAYS = [[], [1], [1, 2], [1, 1], [1, 2, 3], ["x"]]
ANYTHING = ["a", 1, 1.5, None, True, [1], {"a": 1}]

KEPT: list[tuple[dict[str, Any] | bool, list[Any]]] = [
    # annotations, and what nobody knows
    *(({**S, word: value}, TEXTS) for word, value in [
        ("title", "t"), ("description", "d"), ("default", "x"), ("examples", ["x"]), ("deprecated", True), ("readOnly", True),
        ("writeOnly", False), ("$comment", "c"), ("contentEncoding", "base64"), ("contentMediaType", "a/b"), ("contentSchema", {}),
        ("x-order", 1), ("discriminator", {"propertyName": "a"}), ("$vocabulary", {}), ("$schema", "https://example.com/mine"), ("$id", "https://example.com/a"),
        ("minItems", 3), ("required", ["a"]), ("properties", {"a": INT}), ("multipleOf", 2), ("uniqueItems", False), ("additionalItems", False),
        ("unevaluatedItems", True), ("unevaluatedProperties", True), ("minContains", 2), ("then", INT), ("else", INT), ("dependencies", {}),
    ]),
    *(({**S, "format": form}, TEXTS) for form in (
        "byte", "binary", "password", "int32", "uri-reference", "iri", "iri-reference", "idn-email", "idn-hostname", "uri-template",
        "json-pointer", "relative-json-pointer", "regex", "phone", "color", "mine",
    )),
    # booleans as schemas
    (True, ANYTHING),
    ({"type": "object", "properties": {"a": True, "b": False}, "additionalProperties": False}, OBJECTS),
    ({"type": "array", "items": True, "maxItems": 2}, ARRAYS),
    ({"type": "array", "items": False}, ARRAYS),
    ({"type": "object", "additionalProperties": True}, OBJECTS),
    # names of members
    *(({"type": "object", "propertyNames": names, "additionalProperties": INT}, OBJECTS) for names in (
        {}, True, S, {"description": "d"}, {"enum": ["a", "c"]}, {"type": "string", "enum": ["a", "b"]}, {"const": "a"}, {"pattern": "^[ab]$"},
        {"minLength": 2}, {"type": "string", "maxLength": 1},
    )),
    ({**OBJ, "propertyNames": S}, OBJECTS),
    ({**OBJ, "minProperties": 0}, OBJECTS),
    ({**OBJ, "required": ["a"], "minProperties": 1}, OBJECTS),
    # items
    ({**A, "uniqueItems": False}, ARRAYS),
    ({**A, "uniqueItems": True, "maxItems": 1}, ARRAYS),
    ({**A, "contains": {}}, ARRAYS),
    ({**A, "contains": True, "minContains": 2}, ARRAYS),
    ({**A, "contains": {}, "maxContains": 2}, ARRAYS),
    ({**A, "contains": {"const": 1}, "minContains": 0}, ARRAYS),
    ({"type": "array", "prefixItems": [INT, S], "unevaluatedItems": False}, [*ARRAYS, [1, "x"], [1, "x", 2]]),
    ({**A, "unevaluatedItems": False}, ARRAYS),
    ({"$schema": D7, "type": "array", "items": [INT], "additionalItems": False}, ARRAYS),
    ({"$schema": D7, "type": "array", "items": [INT], "additionalItems": S}, [*ARRAYS, [1, "x"]]),
    # members that are left
    ({**OBJ, "unevaluatedProperties": False}, OBJECTS),
    ({"type": "object", "properties": {"a": INT}, "unevaluatedProperties": False}, OBJECTS),
    ({"type": "object", "properties": {"a": INT}, "unevaluatedProperties": S}, OBJECTS),
    # conditions
    ({**INT, "if": {"minimum": 2}}, ANYTHING),
    ({**INT, "if": {"minimum": 2}, "then": True, "else": {}}, ANYTHING),
    ({"if": True, "then": INT, "else": S}, ANYTHING),
    ({"if": False, "then": INT, "else": S}, ANYTHING),
    ({**OBJ, "dependentRequired": {}}, OBJECTS),
    ({**OBJ, "dependentRequired": {"a": ["b"]}}, OBJECTS),
    ({**OBJ, "dependentRequired": {"a": []}}, OBJECTS),
    ({**OBJ, "required": ["a"], "dependentRequired": {"a": ["b"]}}, OBJECTS),
    ({**OBJ, "dependentSchemas": {"a": {"required": ["b"]}}}, OBJECTS),
    ({"$schema": D7, **OBJ, "dependencies": {"a": ["b"]}}, OBJECTS),
    ({"$schema": D7, **OBJ, "dependencies": {"a": {"required": ["b"]}}}, OBJECTS),
    # negations
    ({**S, "not": False}, TEXTS),
    ({**S, "not": {"not": {}}}, TEXTS),
    ({"not": {"type": "null"}}, ANYTHING),
    ({"not": {"type": ["number", "string"]}}, ANYTHING),
    ({"type": ["string", "integer", "null"], "not": {"type": "number"}}, ANYTHING),
    ({"enum": ["a", "b", 1], "not": {"enum": ["b"]}}, TEXTS),
    ({"enum": ["a", "ab"], "not": {"const": "a"}}, TEXTS),
    ({**OBJ, "not": {"required": ["a"]}}, OBJECTS),
    # numbers and types of older drafts and of other dialects
    ({"$schema": D4, **INT, "minimum": 1, "exclusiveMinimum": True}, [0, 1, 2]),
    ({"$schema": D4, **INT, "minimum": 1, "exclusiveMinimum": False}, [0, 1, 2]),
    ({"$schema": D4, **INT, "maximum": 1, "exclusiveMaximum": True}, [0, 1, 2]),
    ({"$schema": D4, "type": "object", "properties": {"a": {**INT, "id": "#a"}}, "required": ["a"]}, OBJECTS),
    # references
    ({"$defs": {"a": {"$anchor": "x", **S}}, "$ref": "#x"}, TEXTS),
    ({"$defs": {"a": {"$dynamicAnchor": "x", **S}}, "$dynamicRef": "#x"}, TEXTS),
    ({"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "array", "items": {"$recursiveRef": "#"}}, [[], [[]], [1]]),
    ({"definitions": {"a": S}, "$ref": "#/definitions/a"}, TEXTS),
    # patterns
    ({**S, "pattern": "^(?=a)[a-c]+$"}, TEXTS),
    ({**S, "pattern": r"^(?=.*b)(?=.*c).*$"}, TEXTS),
    ({**S, "pattern": "^[^\\s]+$"}, TEXTS),
]  # fmt: skip

REFUSED: list[tuple[dict[str, Any] | bool, str]] = [
    (False, "#: no value"),
    ({"not": {}}, "#: no value"),
    ({"not": True}, "#: no value"),
    ({"type": "object", "properties": {"a": {"not": {"minimum": 3}}}}, "#/properties/a/not: cannot be enforced; say what"),
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ({"anyOf": [S, {**A, "contains": {"const": 1}}]}, "#/anyOf/1/contains"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "#/if"),
    ({**S, "pattern": "^(?!a)"}, "#/pattern: cannot be enforced; look-around"),
    ({"$defs": {"x": {**S, "pattern": "(?<=a)b"}}, "$ref": "#/$defs/x"}, "#/$defs/x/pattern"),
    ({**OBJ, "propertyNames": {"pattern": "^a"}}, "#/propertyNames"),
    ({"allOf": [OBJ], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
    ({"type": "array", "prefixItems": [INT], "contains": S, "unevaluatedItems": False}, "#/"),
]  # fmt: skip


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def test_the_table_is_as_long_as_it_says() -> None:
    assert len(KEPT) + len(REFUSED) >= 87


@pytest.mark.parametrize(("schema", "values"), KEPT, ids=json.dumps)
def test_what_a_grammar_allows_is_what_is_valid(schema: dict[str, Any] | bool, values: list[Any]) -> None:
    judged = (
        {key: each for key, each in schema.items() if key != "$vocabulary"}
        if isinstance(schema, dict)
        else schema
    )
    if isinstance(judged, dict) and "example.com/mine" in str(judged.get("$schema")):
        del judged["$schema"]
    validator = jsonschema_rs.validator_for(judged)
    matcher = compiled(GRAMMARS, "json_schema", json.dumps(schema))
    verdicts = [validator.is_valid(value) for value in values]
    assert any(verdicts)
    assert [accepts(matcher.grammar.matcher(), ids_of(json.dumps(value))) for value in values] == verdicts


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=json.dumps)
def test_what_cannot_be_kept_is_refused_with_where_it_stands(
    schema: dict[str, Any] | bool, words: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        check(Constraint("json_schema", json.dumps(schema)))
    assert words in str(caught.value)


@pytest.mark.parametrize("schema", [each for each, _ in REFUSED[3:]], ids=json.dumps)
def test_a_lenient_schema_loses_what_cannot_be_kept(schema: dict[str, Any]) -> None:
    check(Constraint("json_schema", json.dumps({**schema, "x-guidance": {"lenient": True}})))


TO_X: dict[str, Any] = {"$ref": "#/$defs/x"}
ENDLESS: list[dict[str, Any]] = [
    {"x": TO_X},
    {"x": {"$ref": "#/$defs/y"}, "y": TO_X},
    {"x": {"anyOf": [TO_X, {"oneOf": [TO_X]}]}},
    {"x": {"allOf": [{"type": "object"}, TO_X]}},
    {"x": {"$ref": "#/$defs/y"}, "y": {"anyOf": [TO_X, False]}},
]


@pytest.mark.parametrize("definitions", ENDLESS, ids=json.dumps)
def test_a_member_whose_schema_leads_to_nothing_but_itself_is_never_begun(
    definitions: dict[str, Any],
) -> None:
    """No value fits it; where the schema is lenient, any does."""
    schema = {"type": "object", "properties": {"a": TO_X, "b": INT}, "$defs": definitions}
    matcher = compiled(GRAMMARS, "json_schema", json.dumps(schema))
    assert accepts(matcher.grammar.matcher(), ids_of('{"b": 1}'))
    GRAMMARS.consume([(matcher, each) for each in ids_of('{"a')])
    assert not error_of(GRAMMARS, matcher), "so may other members"
    GRAMMARS.consume([(matcher, ids_of('"')[0])])
    assert error_of(GRAMMARS, matcher)
    lenient = compiled(GRAMMARS, "json_schema", json.dumps({**schema, "x-guidance": {"lenient": True}}))
    assert accepts(lenient.grammar.matcher(), ids_of('{"a": [1], "b": 1}'))


def test_a_schema_that_refers_to_itself_and_ends_is_kept() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, TO_X]}
    definitions = {"x": {"anyOf": [{"$ref": "#/$defs/y"}, INT]}, "y": TO_X}
    matcher = compiled(GRAMMARS, "json_schema", json.dumps({**schema, "$defs": definitions}))
    assert accepts(matcher.grammar.matcher(), ids_of('{"a": {"a": 1}}'))


ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)


def test_an_email_address_of_zod_is_kept() -> None:
    matcher = compiled(GRAMMARS, "json_schema", json.dumps({**S, "format": "email", "pattern": ZOD_EMAIL}))
    for address, is_good in [
        ("a.b@c.de", True),
        (".a@c.de", False),
        ("a..b@c.de", False),
        ("a@c", False),
        ("a!b@c.de", False),
    ]:
        assert accepts(matcher.grammar.matcher(), ids_of(json.dumps(address))) is is_good, address


@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_json_may_stand_on_lines_but_in_no_long_blanks(indent: int | str | None) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "array", "items": INT}}})
    matcher = compiled(GRAMMARS, "json_schema", schema)
    value = {"a": [1, 2]}
    assert accepts(matcher.grammar.matcher(), ids_of(json.dumps(value, indent=indent)))
    assert accepts(matcher.grammar.matcher(), ids_of(json.dumps(value, separators=(",", ":"))))
    for blanks in ("  ", "\n\n", "\n" + " " * 41, "\t", " \n"):
        assert not accepts(matcher.grammar.matcher(), ids_of(f'{{{blanks}"a": []}}')), blanks


def test_an_answer_of_any_tokens_has_no_run_of_blanks_longer_than_a_line() -> None:
    draw = random.Random(7)
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "boolean"}}},
            "required": ["a"],
        }
    )
    longest = 0
    for _ in range(20):
        matcher, answer = compiled(GRAMMARS, "json_schema", schema), ""
        while len(answer) < 200 and (ids := sorted(allowed(GRAMMARS, matcher) - matcher.ends)):
            chosen = draw.choice(ids)
            assert not GRAMMARS.consume([(matcher, chosen)])
            answer += TOKENIZER.decode([chosen], skip_special_tokens=False)
        longest = max(longest, *map(len, re.findall(r"\s*", answer)))
    assert 1 < longest <= 42
