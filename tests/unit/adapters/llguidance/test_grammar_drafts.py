"""Drafts of a constraint, and the masks behind each: those that its matcher would make on its way."""

from __future__ import annotations

import json
import random
import threading

import pytest

from nanoserve.adapters.llguidance.answers import Answer
from nanoserve.adapters.llguidance.serving import Desk
from nanoserve.ports.grammar import Constraint
from tests.patience import PATIENCE
from tests.unit.adapters.llguidance.vocabularies import (
    byte_level,
    compiled,
    filled,
    grammars_of,
    masks_of,
    plain,
    sentencepiece,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string"},
        "status": {"enum": ["accepted", "rejected"]},
        "items": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["customer_name", "status", "items"],
    "additionalProperties": False,
}
STRICT = Constraint("json_schema", json.dumps(SCHEMA), whitespace="")
LOOSE = Constraint("json_schema", json.dumps(SCHEMA))
WORD = Constraint("regex", "(hello|help) world[.!]")
GRAMMARS = grammars_of(plain())
TOKENIZER = plain()


def nothing(_forced: list[int]) -> list[int]:
    return []


@pytest.mark.parametrize("constraint", [STRICT, LOOSE, WORD])
def test_masks_behind_drafts_are_those_on_the_way(constraint: Constraint) -> None:
    matcher = GRAMMARS.compile(constraint)
    while not matcher.done():
        GRAMMARS.rest()
    dice, drafted = random.Random(2), 0
    for _ in range(8):
        ahead, plainly = matcher.result().matcher(), matcher.result().matcher()
        for _ in range(40):
            drafts = GRAMMARS.draft(ahead, 6, lambda forced: [*range(97, 103)])
            drafted += len(drafts)
            block, found = filled(GRAMMARS, [ahead, Answer(ahead.grammar, ahead.said)], [drafts, []])
            assert not found.late
            walker = Answer(plainly.grammar, plainly.said)
            for number, token in enumerate([*drafts, None]):
                assert [bytes(block.mask(number))] == masks_of(GRAMMARS, [walker])
                assert token is None or not GRAMMARS.consume([(walker, token)])
            assert block.mask(1 + len(drafts)) == block.mask(0)
            bits = int.from_bytes(block.mask(0), "little")
            token = dice.choice([each for each in range(8 * block.width) if bits >> each & 1])
            if token in ahead.ends:
                break
            assert not GRAMMARS.consume([(ahead, token), (plainly, token)])
    assert drafted


def test_what_must_come_next_is_drafted_as_the_tokenizer_writes_it() -> None:
    grammar = GRAMMARS.compile(STRICT)
    while not grammar.done():
        GRAMMARS.rest()
    matcher = grammar.result().matcher()
    masks_of(GRAMMARS, [matcher])
    text = '{"customer_name":"'
    first = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert GRAMMARS.draft(matcher, 50, nothing) == first
    assert GRAMMARS.draft(matcher, 3, nothing) == first[:3]
    # Behind it anything may come, and what is guessed is kept as far as it is allowed.
    assert not GRAMMARS.consume([(matcher, each) for each in first[:1]])
    guesses = TOKENIZER.encode('Ada","status":"no', add_special_tokens=False).ids
    found = GRAMMARS.draft(matcher, 50, lambda _: guesses)
    assert found[: len(first) - 1] == first[1:]
    assert TOKENIZER.decode(found[len(first) - 1 :]) == 'Ada","status":"'


def test_a_matcher_that_speaks_of_ids_or_whose_worker_takes_its_time_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars, may, do = grammars_of(plain()), threading.Event(), Desk._do
    matcher = compiled(grammars, STRICT.kind, STRICT.text, compact=True)
    assert not grammars.draft(matcher, 5, nothing), "nobody follows it yet"
    masks_of(grammars, [matcher])
    assert grammars.draft(matcher, 5, nothing)
    monkeypatch.setattr(Desk, "_do", lambda *given: (may.wait(PATIENCE), do(*given)))
    grammars.draft_patience = 0.0
    assert not grammars.draft(matcher, 5, nothing)
    may.set()
    grammars.draft_patience = PATIENCE
    assert grammars.draft(matcher, 5, nothing)
    of_ids = compiled(grammars, "lark", "start: <[5-6]> <[7]>")
    masks_of(grammars, [of_ids])
    assert not grammars.draft(of_ids, 5, nothing)


def test_vocabularies_of_bytes_and_of_pieces_have_drafts_too() -> None:
    for tokenizer in (byte_level(), sentencepiece(metaspace=False)):
        grammars = grammars_of(tokenizer)
        grammar = grammars.compile(Constraint("regex", "abab né"))
        while not grammar.done():
            grammars.rest()
        matcher, found = grammar.result().matcher(), list[int]()
        masks_of(grammars, [matcher])
        while drafts := grammars.draft(matcher, 2, nothing):
            for token in drafts:
                assert not grammars.consume([(matcher, token)])
            found += drafts
        masks_of(grammars, [matcher])
        assert tokenizer.decode(found).strip() == "abab né"
        assert matcher.may_end()
