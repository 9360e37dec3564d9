"""Limits of a constraint's cost, checked before anything is computed: sizes of texts, and known expensive parts of JSON schemas.

llguidance counts its own work and gives up in time, with these exceptions: it follows references between definitions by recursion, which a long chain of them
could drive off the end of a stack; it builds all values of an `enum` and all remainders of `multipleOf` before the first token; and what `work` counts.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind

MAX_CHARACTERS: Final = {
    ConstraintKind.JSON_SCHEMA: 256 << 10,
    ConstraintKind.JSON_OBJECT: 0,
    ConstraintKind.REGEX: 8 << 10,
    ConstraintKind.CHOICE: 256 << 10,
    ConstraintKind.LARK: 256 << 10,
    ConstraintKind.GBNF: 64 << 10,
    ConstraintKind.STRUCTURAL_TAG: 256 << 10,
}
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 10_000
"""Values of an `enum`, of a choice, and of a repetition in a regular expression."""
MAX_LITERAL: Final = 8 << 10
"""Characters of a text that an answer must have: a lexer has a state for each byte of it, as JSON writes that."""
MAX_PROPERTIES: Final = 2_000
"""Properties of an object: the library goes through all of them at once, with the interpreter's lock."""
MAX_REFERENCES: Final = 1_000
"""Definitions, rules, and references to them."""
MAX_REMAINDERS: Final = 10_000
MAX_TAGS: Final = 256
MAX_RECURSION: Final = 100_000
"""Squares of how often rules are referred to that may contain themselves, summed up."""
MAX_GBNF: Final = 8_000_000
"""Rules of a grammar in GBNF, times its characters."""

_REPETITION: Final = re.compile(r"\{\s*+(\d++)\s*+(?:,\s*+(\d*+)\s*+)?\}")
_ATTRIBUTES: Final = r'(?>(?:\[(?>(?:[^"\]\n]++|"[^"\n]*+")*)\])?)'
_RULE: Final = re.compile(rf'^[^\S\n]*+[?!]?[A-Za-z_][\w.]*+{_ATTRIBUTES}[^:\n"/]*+:', re.MULTILINE)
"""Both patterns never give back what they have taken, nor look past their line: texts that fit badly cost no more than their length."""
_TERMINAL: Final = re.compile(r'"(?>(?:[^"\\\n]++|\\.)*)"|/(?>(?:[^/\\\n]++|\\.)*)/')
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
"""Name of a rule; also found within texts and expressions, which makes references seem more than they are."""


def check_size(constraint: Constraint) -> ConstraintKind:
    """Its kind, if that is known and the text is not too long for it. Raises `BadValueError`."""
    try:
        kind = ConstraintKind(constraint.kind)
    except ValueError:
        known = ", ".join(ConstraintKind)
        raise BadValueError("constraint", f"must be one of {known}, got {constraint.kind!r:.40}") from None
    length, most = len(constraint.text), MAX_CHARACTERS[kind]
    if length > most:
        raise BadValueError(kind, f"may have {most} characters, got {length}")
    return kind


def read_json(name: str, text: str) -> Any:
    """JSON of limited depth. Raises `BadValueError`."""
    return _limited(name, lambda: json.loads(text))


def json_at(name: str, text: str, place: int) -> tuple[Any, int]:
    """The JSON that begins at a place of a text, and where it ends. Raises `BadValueError`."""
    found: tuple[Any, int] = _limited(name, lambda: json.JSONDecoder().raw_decode(text, place), extra=1)
    return found


def _limited(name: str, read: Callable[[], Any], extra: int = 0) -> Any:
    """The parsed JSON, if its depth is in bounds; `extra` levels are around it."""
    try:
        value = read()
        is_deeper = _is_deeper(value, MAX_DEPTH + extra)
    except RecursionError:
        is_deeper = True
    except ValueError as error:
        raise BadValueError(name, f"must be JSON: {error}") from None
    if is_deeper:
        raise BadValueError(name, f"may be nested {MAX_DEPTH} levels deep, and is deeper")
    return value


def check_schema(name: str, schema: Any) -> None:
    """Raises `BadValueError` for a schema that is known to cost too much by a keyword of it, which it names."""
    if not isinstance(schema, dict | bool):
        raise BadValueError(name, f"must be an object or a boolean, got {json.dumps(schema):.40}")
    divisors = list[Decimal]()
    for keyword, value in _members(schema):
        if len(keyword) > MAX_LITERAL:
            check_literals(name, keyword, keyword)
        if keyword in {"const", "enum"}:
            check_literals(name, keyword, value)
        if keyword == "enum" and isinstance(value, list) and len(value) > MAX_VALUES:
            raise BadValueError(name, f"enum: may have {MAX_VALUES} values, got {len(value)}")
        if keyword == "properties" and isinstance(value, dict) and len(value) > MAX_PROPERTIES:
            raise BadValueError(name, f"properties: may have {MAX_PROPERTIES} members, got {len(value)}")
        if keyword in {"pattern", "format"} and isinstance(value, str):
            check_repetitions(f"{name}: {keyword}", value)
        elif keyword == "multipleOf" and isinstance(value, int | float) and not isinstance(value, bool):
            divisors.append(Decimal(str(value)))
    _check_divisors(name, divisors)


def check_literals(name: str, keyword: str, value: Any) -> None:
    """Raises `BadValueError` for a JSON value with a text that is longer than an answer may have to have."""
    held = [value]
    while held:
        value = held.pop()
        if isinstance(value, str) and len(value) > MAX_LITERAL:
            message = f"a text may have {MAX_LITERAL} characters, got {len(value)}"
            raise BadValueError(name, f"{keyword:.40}: {message}")
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        if isinstance(inner, list):
            held += [each for each in inner if not isinstance(each, str) or len(each) > MAX_LITERAL]


def check_repetitions(name: str, text: str) -> None:
    """Raises `BadValueError` for a regular expression that repeats something too often."""
    for found in _REPETITION.finditer(text):
        counts = found.groups(default="0")
        if any(len(each) > len(str(MAX_VALUES)) or int(each or 0) > MAX_VALUES for each in counts):
            raise BadValueError(name, f"a repetition may be of {MAX_VALUES}, got {found[0]:.40}")


def check_terminals(name: str, lark: str) -> None:
    """Raises `BadValueError` for a text or an expression in a grammar that is too long; schemas in it are no part of that."""
    for found in _TERMINAL.finditer(lark):
        check_literals(name, "a terminal", found[0])


def check_rules(name: str, lark: str) -> None:
    """Raises `BadValueError` for a grammar of too many rules."""
    check_repetitions(name, lark)
    rules = len(_RULE.findall(lark))
    if rules > MAX_REFERENCES:
        raise BadValueError(name, f"may have {MAX_REFERENCES} rules, got {rules}")
    _check_recursion(name, lark)


def _check_recursion(name: str, lark: str) -> None:
    """Where rules that refer to each other may be empty, the library holds all references to one of them against each other."""
    heads = [*_RULE.finditer(lark)]
    ends = [*(each.start() for each in heads), len(lark)][1:]
    bodies = {
        _NAME.findall(head[0])[0]: Counter(_NAME.findall(lark, head.end(), end))
        for head, end in zip(heads, ends, strict=True)
    }
    referred = Counter[str]()
    for body in bodies.values():
        referred.update(body)
    sorter = TopologicalSorter({rule: body.keys() & bodies for rule, body in bodies.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        _, found = error.args
        rest = set(bodies)
        while ready := sorter.get_ready():
            rest.difference_update(ready)
            sorter.done(*ready)
        if sum(referred[each] ** 2 for each in rest) > MAX_RECURSION:
            message = f"{found[0]}: rules that refer to each other may do so {MAX_RECURSION} times, squared for each"
            raise BadValueError(name, message) from None


def check_gbnf(name: str, text: str) -> None:
    """Raises `BadValueError` for a grammar that takes long to turn into Lark: all of it is looked at for each rule."""
    rules = text.count("::=")
    if rules * len(text) > MAX_GBNF:
        message = f"its rules times its characters may be {MAX_GBNF}, got {rules} times {len(text)}"
        raise BadValueError(name, message)


def _check_divisors(name: str, divisors: list[Decimal]) -> None:
    """All of them together, as a schema may ask for several at once."""
    if any(not each.is_finite() or each <= 0 for each in divisors):
        raise BadValueError(name, "multipleOf: must be above 0")
    digits = max((max(0, -int(each.as_tuple().exponent)) for each in divisors), default=0)
    is_large = digits > len(str(MAX_REMAINDERS)) or any(each > MAX_REMAINDERS for each in divisors)
    if is_large or math.lcm(*(int(each.scaleb(digits)) for each in divisors)) > MAX_REMAINDERS:
        raise BadValueError(name, f"multipleOf: may have {MAX_REMAINDERS} remainders, and has more")


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    held = [each for each in inner if isinstance(each, dict | list)]
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in held)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The members of all objects in a JSON value."""
    held = [value] if isinstance(value, dict | list) else []
    while held:
        value = held.pop()
        if isinstance(value, dict):
            yield from value.items()
            value = value.values()
        held += [each for each in value if isinstance(each, dict | list)]
