"""What a constraint may weigh: long texts, wide objects, expressions that grow, and what a client's grammars cost others."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import queue
import random
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from nanoserve.adapters.llguidance import reading, workers
from nanoserve.adapters.llguidance.answers import FULL_BYTES, Compiled, Living
from nanoserve.adapters.llguidance.grammars import LIVING_BYTES
from nanoserve.adapters.llguidance.limits import MAX_LITERAL
from nanoserve.adapters.llguidance.reading import check, is_known
from nanoserve.adapters.llguidance.workers import FairWorkers
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import AT_FAULT, Constraint
from tests.unit.adapters.llguidance.vocabularies import (
    accepts,
    compiled,
    error_of,
    grammars_of,
    masks_of,
    plain,
)

TOKENIZER = plain()
GRAMMARS = grammars_of(TOKENIZER)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


def unlike(count: int) -> dict[str, Any]:
    """Optional properties, none of which has the schema of another one."""
    named = {f"p{number}": {"type": "string", "maxLength": number} for number in range(count)}
    return {"type": "object", "properties": named}


def alike(count: int, schemas: int) -> dict[str, Any]:
    """Optional properties of so many schemas in all."""
    named = {f"p{number}": {"type": "string", "maxLength": number % schemas} for number in range(count)}
    return {"type": "object", "properties": named}


def json_schema(schema: object) -> tuple[str, str]:
    return "json_schema", json.dumps(schema)


CROWD = {"anyOf": [unlike(250), unlike(251), unlike(252)]}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
REFUSED: list[tuple[tuple[str, str], str]] = [
    (("choice", json.dumps(["x" * 200_000])), "choice: a text may have"),
    (json_schema({"const": "x" * 100_000}), "const: a text may have"),
    (json_schema({"enum": ["a", {"b": ["x" * (MAX_LITERAL + 1)]}]}), "enum: a text may have"),
    (json_schema({"properties": {"x" * 9000: {}}}), "a text may have"),
    (("lark", f'start: "{"x" * 9000}"'), "a text may have"),
    (("lark", f"start: A\nA: /{'x' * 9000}/"), "a text may have"),
    (("gbnf", f'root ::= "{"x" * 9000}"'), "a text may have"),
    (("lark", "start: T\nT: /(.|\\n)*a.{40}/"), "counted repetitions"),
    (json_schema({"type": "string", "pattern": "^.*a.{40}$"}), "counted repetitions"),
    (json_schema(unlike(600)), "#/properties: 500 optional ones"),
    (json_schema(alike(1000, 33)), "#/properties: 500 optional ones"),
    (json_schema(optional(4000)), "properties: may have 2000"),
    (json_schema(CROWD), "500 optional properties"),
    (json_schema({"$ref": "#"}), "#: no value"),
    (json_schema(ENDLESS | {"$defs": {"x": {"$ref": "#/$defs/x"}}}), "'a' is unsatisfiable"),
    (("structural_tag", '{"triggers": 5, "structures": []}'), "must be array, got int"),
    (("structural_tag", '{"triggers": ["<"], "structures": [{"begin": "<"}]}'), "needs the member schema"),
    (("structural_tag", '{"format": {"type": "triggered_tags", "tags": {}}}'), "must be array"),
]


@pytest.mark.parametrize(("constraint", "named"), REFUSED)
def test_what_is_too_heavy_or_fits_nothing_is_refused_at_the_door(
    constraint: tuple[str, str], named: str
) -> None:
    with pytest.raises(BadValueError, match=named) as caught:
        check(Constraint(*constraint))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "constraint",
    [
        json_schema({"const": "x" * MAX_LITERAL}),
        ("choice", json.dumps([f"{number}{'x' * 8000}" for number in range(24)])),
        json_schema(optional(480) | {"description": "d" * 100_000}),
        json_schema(alike(1000, 31)),
        json_schema({"type": "string", "pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"}),
        json_schema({"type": "string", "pattern": r"^(\w+ ){10,40}\w+$"}),
        json_schema({"type": "string", "minLength": 10, "maxLength": 2000}),
        ("regex", r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,63}"),
        ("lark", f"start: %json {json.dumps({'description': '/' + 'd' * 20_000})}"),
    ],
)
def test_what_real_constraints_have_is_let_in(constraint: tuple[str, str]) -> None:
    check(Constraint(*constraint))


def test_a_constraint_that_comes_again_is_not_tried_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, said = list[str](), list[str]()
    monkeypatch.setattr(reading, "_VERDICTS", {})
    monkeypatch.setattr(reading, "MAX_VERDICTS", 2)

    def rehearse(_: str, written: str) -> str:
        tried.append(written)
        return "NoExtension"

    monkeypatch.setattr(reading, "rehearse", rehearse)
    for text in ("a", "b", "a", "c", "a", "b"):
        with pytest.raises(BadValueError) as caught:
            check(Constraint("regex", text))
        said.append(str(caught.value))
        assert is_known(Constraint("regex", text))
    assert tried == ["a", "b", "c", "b"]
    check(Constraint("regex", "a"), is_composed=True)
    assert tried == ["a", "b", "c", "b"], "what is composed is weighed alone"
    assert set(said) == {"regex: no text of this model's tokens fits"}
    assert len(reading._VERDICTS) == 2


def test_the_same_constraint_gets_the_same_verdict_on_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_VERDICTS", {})
    for name in ("thread_time", "perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, name, functools.partial(next, itertools.count(0, 1000)))
    with pytest.raises(BadValueError, match="counted repetitions"):
        check(Constraint("lark", "start: T\nT: /(.|\\n)*a.{40}/"))
    check(Constraint("regex", "[ab]{10,20}"))


def test_white_space_and_kind_are_part_of_what_was_tried_out() -> None:
    check(Constraint("regex", "[a-z]"))
    with pytest.raises(BadValueError):
        check(Constraint("choice", "[a-z]"))
    check(Constraint("json_schema", "{}", whitespace=""))
    with pytest.raises(BadValueError):
        check(Constraint("json_schema", "{}", whitespace="("))


def test_wide_objects_have_optional_members_of_one_schema_in_any_order_behind_the_others() -> None:
    """Grouped by schema, as the library follows each property alone: where none is grouped, the order is the schema's."""
    wide = optional(1999)
    wide["properties"] |= {"n": {"type": "integer"}, "p7": {"type": "null"}}
    closed = wide | {"required": ["n", "p3"], "additionalProperties": False}
    odd = {"properties": {f"{number} [|$/\\é": {"type": "string"} for number in range(150)}}
    for schema, good, bad in (
        (wide, ['{"p1998": "a", "p0": "b"}', '{"p7": null, "n": 1, "p3": ""}', "{}", '{"q": 1}'], ['{"p0": 1}', '{"p7": "a"}', '{"n": ""}']),
        (closed, ['{"p3": "", "n": 1, "p5": "", "p4": ""}'], ['{"n": 1}', "{}", '{"p3": "", "n": 1, "q": 1}']),
        (odd, ['{"1 [|$/\\\\é": ""}', '{"1 ": 0}'], ['{"1 [|$/\\\\é": 0}']),
        (optional(50), ['{"p1": "", "p2": ""}'], ['{"p2": "", "p1": ""}']),
        ({"allOf": [optional(200), {"patternProperties": {"^p1": {"maxLength": 1}}}]}, ['{"p1": "a"}'], ['{"p1": "ab"}']),
        ({"$ref": "#/$defs/w", "properties": {"p1": {"maxLength": 1}}, "$defs": {"w": wide}}, ['{"p1": "a"}'], ['{"p1": "ab"}']),
    ):  # fmt: skip
        check(Constraint(*json_schema(schema)))
        matcher = compiled(GRAMMARS, *json_schema(schema))
        for is_good, texts in ((True, good), (False, bad)):
            assert [accepts(matcher.grammar.matcher(), ids_of(each)) for each in texts] == [is_good] * len(
                texts
            )


def test_a_rule_may_say_what_stops_it() -> None:
    text = 'start[stop="x"]: /.*/'
    check(Constraint("lark", text))
    matcher = compiled(GRAMMARS, "lark", text)
    assert not GRAMMARS.consume([(matcher, each) for each in ids_of("abc")])
    assert not error_of(GRAMMARS, matcher)


@pytest.mark.parametrize("text", ["%ignore /x/", "// none", " "])
def test_a_grammar_without_rules_is_refused_in_a_clients_words(text: str) -> None:
    with pytest.raises(BadValueError, match="no start rule"):
        check(Constraint("lark", text))


def test_whoever_has_cost_less_is_served_next_and_ten_large_grammars_wait_for_small_ones() -> None:
    """Clients that owe something; one that owes nothing is served by another thread meanwhile."""
    begun, gate, order, clock = threading.Event(), threading.Event(), list[str](), [0.0]
    fair = FairWorkers[None](1, cost=lambda: clock[0], clock=lambda: 0.0)

    def hold() -> None:
        begun.set()
        assert gate.wait(60)

    def make(client: str, cost: float) -> None:
        order.append(client)
        clock[0] += cost

    for client, cost in (("holder", 0.001), ("heavy", 0.005), ("light", 0.002)):
        fair.submit(client, functools.partial(make, client, cost)).result(60)
    made = [fair.submit("holder", hold)]
    assert begun.wait(60)
    for client, cost, count in (("heavy", 0.005, 10), ("light", 0.002, 3)):
        made += [fair.submit(client, functools.partial(make, client, cost)) for _ in range(count)]
    fair.submit("new", functools.partial(make, "new", 0.0)).result(60)
    assert order == ["holder", "heavy", "light", "new"]
    gate.set()
    for each in made:
        each.result(60)
    assert order[4:] == ["light"] * 2 + ["heavy", "light"] + ["heavy"] * 9


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_who_owes_or_has_something_running_has_low_priority_and_nobody_else_has() -> None:
    now, spent = [0.0], [0.0]
    fair = FairWorkers[int](1, priority=workers.LOW_PRIORITY, cost=lambda: spent[0], clock=lambda: now[0])
    usual, begun, gate = os.getpriority(os.PRIO_PROCESS, 0), threading.Event(), threading.Event()

    def priority(cost: float = 0.001) -> int:
        spent[0] += cost
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def hold() -> int:
        begun.set()
        assert gate.wait(60)
        return priority()

    low = max(workers.LOW_PRIORITY, usual)
    assert [fair.submit("first", priority).result(60) for _ in range(3)] == [usual, low, low]
    assert fair.submit("second", priority).result(60) == usual
    assert [fair.submit("", priority).result(60) for _ in range(3)] == [usual] * 3
    now[0] += workers.AHEAD_SECONDS
    assert fair.submit("first", priority).result(60) == usual
    held = fair.submit("third", hold)
    assert begun.wait(60)
    assert fair.submit("third", lambda: priority(0.0)).result(60) == low
    gate.set()
    assert held.result(60) == usual


def test_who_takes_much_at_once_waits_until_it_is_paid_back_and_nobody_else_does() -> None:
    spent, now, served = [0.0], [100.0], queue.SimpleQueue[str]()
    fair = FairWorkers[None](1, cost=lambda: spent[0], clock=lambda: now[0])
    allowance = workers.SHARE * len(os.sched_getaffinity(0)) * workers.AHEAD_SECONDS

    def make(client: str) -> None:
        spent[0] += 2 * allowance
        served.put(client)

    def beg(client: str) -> Future[None]:
        return fair.submit(client, functools.partial(make, client))

    beg("greedy").result(60)
    second = beg("greedy")
    beg("other").result(60)
    beg("").result(60)
    beg("").result(60)  # offline there is nobody to be fair to
    now[0] += 0.9 * workers.AHEAD_SECONDS
    beg("a third").result(60)
    assert not second.done()
    now[0] += 0.2 * workers.AHEAD_SECONDS
    second.result(60)
    assert [served.get() for _ in range(6)] == ["greedy", "other", "", "", "a third", "greedy"]


def test_beside_one_client_96_percent_of_the_processors_are_left_even_in_a_short_while() -> None:
    """What it may take in three seconds at the door and in the engine, with what it may take at once."""
    seconds = 3.0
    assert 2 * workers.SHARE * (workers.AHEAD_SECONDS + seconds) / seconds < 0.037


def test_what_a_client_has_left_is_not_made_and_its_worker_goes_on() -> None:
    fair, begun, gate, done = FairWorkers[None](1), threading.Event(), threading.Event(), list[int]()

    def hold() -> None:
        begun.set()
        assert gate.wait(60)

    held = fair.submit("", hold)
    assert begun.wait(60)
    waiting = [fair.submit("", functools.partial(done.append, number)) for number in range(3)]
    assert waiting[0].cancel()
    assert not held.cancel()  # it is being made
    assert waiting[1].cancel()
    gate.set()
    waiting[2].result(60)
    assert done == [2]


def test_nothing_is_made_while_what_lives_leaves_no_room() -> None:
    living, alive = Living(), Compiled(Mock(), 0, frozenset(), names_ids=False, seconds=0.0)
    living.add(alive, 10)
    looks, looked = list[int](), threading.Event()

    def has_room() -> bool:
        looks.append(living.total())
        if len(looks) == 3:
            looked.set()
        return looks[-1] < 10

    fair = FairWorkers[str](1, has_room)
    waiting = fair.submit("", lambda: "made")
    assert looked.wait(60)
    assert not waiting.done()
    del alive
    gc.collect()
    assert waiting.result(60) == "made"
    assert set(looks) == {10, 0}


def test_grammars_count_what_lives_and_a_full_lexer_in_full() -> None:
    grammars = grammars_of(TOKENIZER)
    matcher = compiled(grammars, "regex", "a+")
    masks_of(grammars, [matcher])
    small = grammars.living.total()
    assert 1 << 20 <= small < 2 << 20
    assert matcher.compiled is not None
    matcher.compiled.is_full = True
    assert grammars.living.total() >= 16 * small


def test_what_is_cached_and_serves_nobody_keeps_nobody_waiting() -> None:
    """Each grammar is sized as small when it is cached, and takes much once its answers have filled its lexer."""
    grammars = grammars_of(TOKENIZER)
    used = [compiled(grammars, "regex", f"a{number}") for number in range(LIVING_BYTES // FULL_BYTES)]
    masks_of(grammars, used)
    waiting = grammars.compile(Constraint("regex", "b"))
    for each in used:
        assert each.compiled is not None
        each.compiled.is_full = True
    del used, each
    while not waiting.done():
        grammars.rest()
    waiting.result()
    assert grammars.living.total() < LIVING_BYTES


@pytest.mark.parametrize(
    ("constraint", "text", "said"),
    [
        (("lark", f'start: "a" %json {json.dumps(CROWD)}'), "a{", "too much may come next"),
        (("regex", "(?s:.*)[ab][^q]{200}"), "", "an expression has too many states"),
    ],
)
def test_what_fails_behind_the_first_token_is_the_constraint_s_error(
    constraint: tuple[str, str], text: str, said: str
) -> None:
    grammars, chance = grammars_of(TOKENIZER), random.Random(0)
    matcher = compiled(grammars, *constraint, client="any")
    while not (wrong := error_of(grammars, matcher)):
        token, text = (ids_of(text[0])[0], text[1:]) if text else (ids_of(chance.choice("abc "))[0], "")
        assert not grammars.consume([(matcher, token)])
    assert wrong.startswith(f"{AT_FAULT}{said}")
    assert matcher.compiled is not None
    assert matcher.compiled.is_full == ("states" in said), "later answers would fail with the same lexer"


def test_an_error_shows_the_lines_that_the_client_has_written_and_no_other() -> None:
    with pytest.raises(BadValueError) as refused:
        check(Constraint("lark", "start: unheard"))
    assert "1 | start: unheard" in str(refused.value)
    assert "llguidance" not in str(refused.value)
