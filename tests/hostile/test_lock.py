"""Nothing of a request keeps the interpreter's lock for long, for then the loop stands still that every client is served by.

Measured on two cores of 2024: bodies of 4 MiB keep it for 1 to 16 ms, and 25 ms where all of it is escaped quotes; constraints at the
door and in the engine for at most 7 ms. Judged is processor time of the thread itself, as the least of many tries, and with a factor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.llguidance import reading
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http.bodies import decode_body
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody, CompletionBody
from nanoserve.ports.grammar import Constraint
from tests.hostile.lock_watch import longest_hold
from tests.unit.adapters.llguidance.vocabularies import grammars_of, plain

MOST_SECONDS = 0.06
"""20 ms, on a processor of a third of the speed."""
TRIES = 25
MILLION = 10**6


def optional(count: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


def array(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


BODIES: Mapping[str, bytes] = {
    "a million lists": array(b"[]", MILLION),
    "as many lists as may be": array(b"[]", 65_000),
    "a million objects": array(b"{}", MILLION),
    "as many objects as may be": array(b'{"a":{}}', 32_000),
    "a million texts": array(b'"a"', MILLION),
    "as many texts as may be": array(b'"a"', 65_000),
    "a million numbers": array(b"1", MILLION),
    "as many numbers as may be": array(b"123456", 262_000),
    "numbers that are hard to read": array(b"1.2345678901234567e-300", 170_000),
    "messages": array(b'{"role":"user","content":"Hi"}', 130_000),
    "names": b"{" + b",".join(b'"%d":-1.5' % number for number in range(60_000)) + b"}",
    "a text": b'"' + b"a [b], c" * (MILLION // 2) + b'"',
    "escaped quotes": b'"' + b'\\"' * (2 * MILLION) + b'"',
    "backslashes between texts": b'"' + b'\\\\"' * MILLION + b'"',
}
CONSTRAINTS: Mapping[str, Constraint] = {
    "enum": Constraint(
        "json_schema", json.dumps({"enum": [f"{each} of {each * 7919}" for each in range(9000)]})
    ),
    "const": Constraint("json_schema", json.dumps({"const": "x" * 8000})),
    "choice": Constraint("choice", json.dumps([f"{number}" + "x" * 8000 for number in range(24)])),
    "too long": Constraint("choice", json.dumps(["x" * 200_000])),
    "properties": Constraint("json_schema", json.dumps(optional(1000))),
    "unlike properties": Constraint(
        "json_schema", json.dumps({"properties": {f"p{each}": {"maxLength": each} for each in range(480)}})
    ),
    "too many properties": Constraint("json_schema", json.dumps(optional(4000))),
    "growing": Constraint("lark", "start: T\nT: /(.|\\n)*a.{40}/"),
    "growing pattern": Constraint("json_schema", json.dumps({"pattern": "^.*a.{40}$"})),
    "endless": Constraint(
        "json_schema", json.dumps({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}})
    ),
    "GBNF": Constraint("gbnf", "root ::= " + " | ".join(f'"{number}"' for number in range(3000))),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    ("kind", "field"), [(CompletionBody, b"prompt"), (ChatBody, b"metadata"), (ChatBody, b"messages")]
)
def test_bodies(name: str, kind: type[CompletionBody | ChatBody], field: bytes) -> None:
    start = b"{" if kind is CompletionBody or field == b"messages" else b'{"messages":[],'
    body = start + b'"model":"m","' + field + b'":' + BODIES[name] + b"}"
    assert longest_hold(lambda: decode_body(body, kind, BoundSettings()), TRIES, MOST_SECONDS) < MOST_SECONDS


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_at_the_door_and_in_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_VERDICTS", 0)
    grammars = grammars_of(plain())
    constraint = CONSTRAINTS[name]
    assert longest_hold(lambda: reading.check(constraint), TRIES, MOST_SECONDS) < MOST_SECONDS
    making = grammars._make
    assert longest_hold(lambda: making(constraint), TRIES, MOST_SECONDS) < MOST_SECONDS


@pytest.mark.parametrize("text", ["once upon a time ", "x", "\n", "\U0001f600", "<|end|>"])
def test_long_prompts(text: str) -> None:
    tokenizer, prompt = HFTokenizer(str(model_folder())), text * (MILLION // 4 // len(text))
    assert longest_hold(lambda: tokenizer.encode(prompt), TRIES, MOST_SECONDS) < MOST_SECONDS
    assert tokenizer.encode(prompt) == tokenizer._backend.encode(prompt).ids


def test_what_keeps_the_lock_is_seen() -> None:
    assert longest_hold(lambda: sum(range(30 * MILLION)), 3) > MOST_SECONDS
