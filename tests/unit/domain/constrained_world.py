"""A small world whose answers follow grammars, grammars that take their time, and the answers that are right: those of a model masked at each step, alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.ports.grammar import Constraint, Filled, Grammar, MaskBlock, Matcher, Pending
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.request import FinishReason, Request
from tests.fakes.finite_grammars import (
    KIND,
    FiniteGrammar,
    FiniteGrammars,
    FiniteMatcher,
    Language,
    Slowly,
)
from tests.fakes.memory_runner import expected_token
from tests.unit.domain.world import World, oracle

VOCAB = 24
EOS = (3, 7)
GRAMMARS = FiniteGrammars(VOCAB)
LANGUAGES = (
    "1 2 4",
    "1 2|1 2 5 6|1 9 9 9 9 9 9",
    "0|1|2|4|5",
    "8 8 8 8|8 8 8 9|10",
    "11 12 13 14 15 16 17 18 19 20",
)
NARROW = CacheGroup(layers=(2,), kind=Window(5))
STATES = CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=6, decode_interval=3))
CUT_SHORT = {FinishReason.ABORT, FinishReason.ERROR}


def constraint(language: str, after: Sequence[int] = ()) -> Constraint:
    return Constraint(KIND, language, after=after)


def language_of(text: str) -> Language:
    grammar = GRAMMARS.compile(constraint(text)).result()
    assert isinstance(grammar, FiniteGrammar)
    return grammar.language


class SlowGrammars(FiniteGrammars):
    """Needs some looks for a grammar, and for the masks at some places of an answer."""

    def __init__(self, looks: int, ends: Sequence[int] = ()) -> None:
        super().__init__(VOCAB, frozenset(ends))
        self.looks = looks
        self.rests = 0
        self._is_filling = False
        self._left: dict[tuple[int, int], int] = {}
        self._met: list[Matcher] = []

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        return Slowly(super().compile(constraint), self.looks)

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        assert not self._is_filling, "matchers are used while their masks are made"
        return super().consume(tokens)

    def fill(self, matchers: Sequence[Matcher], block: MaskBlock, *drafts: Any) -> Callable[[], Filled]:
        assert not self._is_filling, "matchers are used while their masks are made"
        self._is_filling = True
        filled = super().fill(matchers, block, *drafts)()
        late = {number for number, each in enumerate(matchers) if not self._has_mask(each)}
        for number in late:
            block.mask(number)[:] = bytes([0b10101010]) * block.width  # half of it is written

        def wait() -> Filled:
            assert self._is_filling, "it is waited for once"
            self._is_filling = False
            return Filled(late, filled.empty - late)

        return wait

    def is_ready(self, matcher: Matcher, /) -> bool:
        key = self._key(matcher)
        self._left[key] -= 1
        return self._left[key] <= 0

    def rest(self) -> None:
        self.rests += 1

    def _has_mask(self, matcher: Matcher) -> bool:
        number, place = key = self._key(matcher)
        is_slow = (number + place) % 3 == 0
        return self._left.setdefault(key, self.looks if is_slow else 0) <= 0

    def _key(self, matcher: Matcher) -> tuple[int, int]:
        assert isinstance(matcher, FiniteMatcher)
        numbers = [number for number, each in enumerate(self._met) if each is matcher]
        if not numbers:
            self._met.append(matcher)
        return (numbers or [len(self._met) - 1])[0], len(matcher.consumed)


def masked_oracle(
    request: Request, index: int, longest: int, window: int | None
) -> tuple[list[int], FinishReason]:
    """The answer of a model that is masked at every step, alone, with no engine at all."""
    assert request.constraint is not None
    answers = [tuple(map(int, each.split())) for each in request.constraint.text.split("|")]
    tokens, said = list(request.prompt_token_ids), list[int]()
    after, begun = request.constraint.after, 0 if not request.constraint.after else None
    most = min(request.sampling.max_tokens or longest, longest - len(tokens))
    while len(said) < most:
        if begun is None:
            allowed = set(range(VOCAB)) - request.eos_token_ids
        else:
            bound = tuple(said[begun:])
            allowed = {
                each[len(bound)] for each in answers if each[: len(bound)] == bound and len(each) > len(bound)
            }
            if bound in answers and len(said) >= request.sampling.min_tokens:
                allowed |= request.eos_token_ids
        if not allowed:
            return said, FinishReason.ERROR
        mask = sum(1 << token for token in allowed).to_bytes(4, "little")
        token = expected_token(tokens, derive_seed(request.seed, index), VOCAB, window, mask)
        tokens.append(token)
        said.append(token)
        if token in request.eos_token_ids:
            return said, FinishReason.STOP
        if begun is None and tuple(said[-len(after) :]) == after:
            begun = len(said)
    return said, FinishReason.LENGTH


def world(**settings: Any) -> World:
    small: dict[str, Any] = {
        "vocab_size": VOCAB,
        "num_blocks": 16,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 12,
    }
    return World(**({**small, "max_model_len": 32, "grammars": GRAMMARS} | settings))


def check(request: Request, found: World, window: int | None = None) -> None:
    for index in range(request.sampling.n):
        answer = found.answer(request.request_id, index)
        if request.constraint is None:
            prompt, count = request.prompt_token_ids, len(answer.token_ids)
            said = oracle(prompt, count, seed=request.seed, index=index, vocab=VOCAB, window=window)
            reason = answer.reason
        else:
            said, reason = masked_oracle(request, index, found.limits.max_model_len, window)
        if answer.reason in CUT_SHORT:
            assert answer.token_ids == said[: len(answer.token_ids)]
        else:
            assert (answer.token_ids, answer.reason) == (said, reason)
