"""Nothing of a request keeps the interpreter's lock for long, for then the loop stands still that every client is served by.

Judged is processor time of the thread itself, in milliseconds of a machine of 2024, as the least of many tries. Measured on its two cores, idle or beside fifteen busy programs: bodies of 4 MiB
keep it for at most 13 ms, constraints at the door and in the engine for 7, prompts of 4 MiB that are too long for 12, and as conversations for 10. One thing takes
longer, where a model's context is that long: the tokenizer's library makes the list of a prompt's ids at once, 24 ms for each million.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.llguidance import reading
from nanoserve.domain.text.dialects.reader import held_back
from nanoserve.domain.text.stream import find_stop
from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http.bodies import decode_body
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody, CompletionBody
from nanoserve.ports.driven import Check
from nanoserve.ports.errors import PromptTooLongError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.sampling import PARAMETERS, SamplingParams
from tests.hostile.lock_watch import longest_hold
from tests.unit.adapters.llguidance.vocabularies import compiler_of, plain

MOST = 20.0
TRIES = 25
MILLION = 10**6
FOUR_MIB = 4 * 2**20
SETTINGS = ServiceSettings(model_names=("m",))


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


CONVERSATIONS: Mapping[str, list[dict[str, Any]]] = {
    "messages": [{"role": "user", "content": "Hi"}] * SETTINGS.max_messages,
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * 65_000}],
    "values": [{"role": "user", "content": "Hi", "more": {str(each): [each] for each in range(60_000)}}],
}


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return HFTokenizer(str(model_folder()))


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    ("kind", "field"), [(CompletionBody, b"prompt"), (ChatBody, b"metadata"), (ChatBody, b"messages")]
)
def test_bodies(name: str, kind: type[CompletionBody | ChatBody], field: bytes) -> None:
    start = b"{" if kind is CompletionBody or field == b"messages" else b'{"messages":[],'
    body = start + b'"model":"m","' + field + b'":' + BODIES[name] + b"}"
    assert longest_hold(lambda: decode_body(body, kind, BoundSettings()), TRIES, MOST) < MOST


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_at_the_door_and_in_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_VERDICTS", 0)
    making = compiler_of(plain()).make
    constraint = CONSTRAINTS[name]
    assert longest_hold(lambda: reading.check(constraint), TRIES, MOST) < MOST
    assert longest_hold(lambda: making(constraint), TRIES, MOST) < MOST


def refuse_more_than(most: int) -> Check:
    def check(length: int) -> None:
        if length > most:
            raise PromptTooLongError(f"has {length} tokens")

    return check


@pytest.mark.parametrize(
    "text", ["once upon a time ", "x", "\n", "\U0001f600", "<|end|>", "<|end|>once ", '"']
)
def test_long_prompts(text: str, tokenizer: HFTokenizer) -> None:
    """As texts and as conversations, where the context is as short as one that so many characters are read for."""
    prompt = text * (FOUR_MIB // len(text.encode()))
    check = refuse_more_than(len(prompt) // SETTINGS.max_prompt_chars_factor)
    messages = [{"role": "user", "content": prompt}]
    for work in (
        lambda: tokenizer.encode(prompt, check=check),
        lambda: HFChatTemplate(tokenizer).render(messages, check=check),
    ):
        assert longest_hold(work, TRIES, MOST) < MOST


def test_a_prompt_that_fits_into_a_long_context(tokenizer: HFTokenizer) -> None:
    prompt = "once upon a time " * (FOUR_MIB // 2 // 17)
    assert longest_hold(lambda: tokenizer.encode(prompt), TRIES, MOST) < MOST
    assert tokenizer.encode(prompt) == tokenizer._backend.encode(prompt).ids


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_of_many_parts(name: str, tokenizer: HFTokenizer) -> None:
    template, messages = HFChatTemplate(tokenizer), CONVERSATIONS[name]
    assert longest_hold(lambda: template.render(messages), TRIES, MOST) < MOST


@pytest.mark.parametrize(
    "given",
    [
        {"stop": ["x" * 64] * 65_000},
        {"stop": "x" * FOUR_MIB},
        {"stop_token_ids": list(range(262_000))},
        {"allowed_token_ids": list(range(262_000))},
        {"logit_bias": {str(token): 1.5 for token in range(60_000)}},
        {"bad_words": ["x" * 64] * 65_000},
    ],
    ids=lambda given: next(iter(given)),
)
def test_lists(given: dict[str, Any]) -> None:
    assert longest_hold(lambda: SamplingParams(**given), TRIES, MOST) < MOST


def test_as_many_stop_strings_as_may_be() -> None:
    declared = PARAMETERS["stop"]
    assert declared.most is not None
    assert declared.characters is not None
    stops = SamplingParams(stop=["x" * (declared.characters // declared.most)] * declared.most).stop
    text = "x" * declared.characters
    assert longest_hold(lambda: find_stop(text, stops, 0), TRIES, MOST) < MOST
    assert longest_hold(lambda: held_back(text, stops), TRIES, MOST) < MOST


def test_what_keeps_the_lock_is_seen() -> None:
    assert longest_hold(lambda: sum(range(30 * MILLION)), 3) > MOST
