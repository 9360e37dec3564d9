"""Grammars of finitely many answers, written out token by token. For tests of the control plane."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, Grammar, GrammarCounts, MaskBlock, Matcher, Pending

Language = frozenset[tuple[int, ...]]
KIND = "answers"


@attrs.define
class FiniteMatcher:
    """Remembers which answers are still possible."""

    language: Language
    ends: frozenset[int] = frozenset()
    consumed: tuple[int, ...] = ()

    def consume(self, token_id: int, /) -> bool:
        """Go on with the answers that have the token next."""
        if token_id not in self.following():
            return False
        self.consumed += (token_id,)
        return True

    def may_end(self) -> bool:
        """Whether an answer is whole."""
        return self.consumed in self.language

    def copy(self) -> FiniteMatcher:
        """Another one in the same state."""
        return FiniteMatcher(self.language, self.ends, self.consumed)

    def following(self) -> set[int]:
        """The tokens that may come next."""
        place = len(self.consumed)
        return {each[place] for each in self.language if len(each) > place and each[:place] == self.consumed}


@attrs.frozen
class FiniteGrammar:
    """A set of answers, and the end-of-sequence ids that masks know."""

    language: Language
    ends: frozenset[int] = frozenset()

    def matcher(self) -> FiniteMatcher:
        """One that has consumed nothing."""
        return FiniteMatcher(self.language, self.ends)


@attrs.define
class FiniteGrammars:
    """Reads constraints of the kind `answers`: token ids with blanks between them, answers with bars: `1 2 3|1 4`.

    Its masks allow the end-of-sequence ids `ends` where an answer is whole; others are left to the engine.
    """

    vocab_size: int
    ends: frozenset[int] = frozenset()

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """Raises `BadValueError` for another kind, for what is no number, and for ids outside the vocabulary."""
        if constraint.kind != KIND:
            raise BadValueError(constraint.kind, f"must be of the kind {KIND}")
        try:
            language = language_of(constraint.text)
        except ValueError as error:
            raise BadValueError("constraint", f"must hold token ids: {error}") from error
        if any(not 0 <= token < self.vocab_size for answer in language for token in answer):
            raise BadValueError("constraint", f"holds ids outside the vocabulary of {self.vocab_size}")
        ready = Future[Grammar]()
        ready.set_result(FiniteGrammar(language, self.ends))
        return ready

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        """One after the other."""
        wrong = {}
        for place, (matcher, token) in enumerate(tokens):
            assert isinstance(matcher, FiniteMatcher)
            if not matcher.consume(token):
                wrong[place] = f"token {token} was drawn, and the constraint does not allow it"
        return wrong

    def draft(self, matcher: Matcher, count: int, more: Callable[[list[int]], Sequence[int]], /) -> list[int]:
        """What comes next in all answers, then the guesses that are right so far."""
        assert isinstance(matcher, FiniteMatcher)
        ahead, found = matcher.copy(), list[int]()
        while len(ahead.following()) == 1 and not ahead.may_end() and len(found) < count:
            found += ahead.following()
            ahead.consume(found[-1])
        for token in more(list(found)):
            if not ahead.consume(token):
                break
            found.append(token)
        return found[:count]

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """What may come next, at once."""
        number, empty = 0, set[int]()
        for matcher, tokens in zip(matchers, drafts or [()] * len(matchers), strict=True):
            assert isinstance(matcher, FiniteMatcher)
            ahead = matcher.copy()
            if not any(self._mask(ahead)):
                empty.add(number)
            for token in (*tokens, None):
                block.mask(number)[:] = self._mask(ahead)
                number += 1
                assert token is None or ahead.consume(token)
        return lambda: Filled(empty=empty)

    def is_ready(self, _matcher: Matcher, /) -> bool:
        """No mask is ever late."""
        return True

    def rest(self) -> None:
        """There are no workers."""

    def counts(self) -> GrammarCounts:
        """It counts nothing."""
        return GrammarCounts()

    def _mask(self, matcher: Matcher) -> bytearray:
        assert isinstance(matcher, FiniteMatcher)
        mask = bytearray(-(-self.vocab_size // 32) * 4)
        ends = matcher.ends if matcher.may_end() else ()
        for token in (*matcher.following(), *ends):
            mask[token >> 3] |= 1 << (token & 7)
        return mask


class Slowly:
    """A worker's result that is there after so many looks."""

    def __init__(self, inner: Pending[Grammar], looks: int) -> None:
        self._inner, self._looks = inner, looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def result(self) -> Grammar:
        return self._inner.result()

    def cancel(self) -> bool:
        return False


class SlowlyCompiledGrammars(FiniteGrammars):
    """Each takes three looks longer than the one before."""

    looks = 0

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """It is looked at before every step."""
        self.looks += 3
        return Slowly(super().compile(constraint, client), self.looks)


class HeldGrammars(FiniteGrammars):
    """Masks of held answers come late: each is there once its answer is let go.

    Attributes:
        held: the languages of answers, as constraints write them, whose masks are late.
        on_rest: called where the engine waits for a mask and has nothing else to do.
    """

    def __init__(self, vocab_size: int, ends: frozenset[int] = frozenset()) -> None:
        super().__init__(vocab_size, ends)
        self.held: set[str] = set()
        self.on_rest: Callable[[], object] = lambda: None

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """Half of a late mask is written when the step is drawn."""
        filled = super().fill(matchers, block, drafts)()
        numbers = itertools.accumulate([1 + len(each) for each in drafts or [()] * len(matchers)], initial=0)
        late = {number for number, each in zip(numbers, matchers, strict=False) if not self.is_ready(each)}
        for number in late:
            block.mask(number)[:] = bytes([0b10101010]) * block.width
        return lambda: Filled(late, filled.empty - late)

    def is_ready(self, matcher: Matcher, /) -> bool:
        """Whether its answer is not held."""
        assert isinstance(matcher, FiniteMatcher)
        return matcher.language not in map(language_of, self.held)

    def rest(self) -> None:
        """Waits for nothing."""
        self.on_rest()


class TardyGrammars(HeldGrammars):
    """Holds these answers in turns, each for as many steps as it has a number, from 1 on."""

    def __init__(self, vocab_size: int, languages: Sequence[str]) -> None:
        super().__init__(vocab_size)
        turns = [{each} for number, each in enumerate(languages, 1) for _ in range(number)]
        self._turns = itertools.cycle([*turns, set[str]()])

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """The next turn begins."""
        self.rest()
        return super().fill(matchers, block, drafts)

    def rest(self) -> None:
        """The next turn begins."""
        self.held = next(self._turns)


class SeatedGrammars(TardyGrammars):
    """Has masks in memory of its own, as workers do that write each next one over the last as soon as its matcher goes on; other workers take over now and then.

    Attributes:
        taken: how many masks were left there.
    """

    def __init__(self, vocab_size: int, languages: Sequence[str]) -> None:
        super().__init__(vocab_size, languages)
        self._size, self._seats = -(-vocab_size // 32) * 4, dict[int, int]()
        self._fills = self.taken = 0

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        """They begin to write."""
        for matcher, _ in tokens:
            self._write(self._seats[id(matcher)], bytes(self._size))
        return super().consume(tokens)

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """As in `TardyGrammars`; a block has nothing of what is left where it is."""
        if self._fills % 8 == 0:
            self._memory = memoryview(mmap.mmap(-1, 1 << 16))
        self._fills += 1
        wait = super().fill(matchers, block, drafts)

        def moved() -> Filled:
            filled = wait()
            for number, matcher in enumerate([] if drafts else matchers):
                seat = self._seats.setdefault(id(matcher), 3 * len(self._seats))
                if number not in filled.late | filled.empty:
                    self._write(seat, bytes(block.mask(number)))
                    if block.take(self._memory, {number: seat}):
                        begin = number * block.width
                        block.memory[begin : begin + block.width] = bytes(block.width)
                        self.taken += 1
            return filled

        return moved

    def _write(self, seat: int, mask: bytes) -> None:
        self._memory[seat * self._size : (seat + 1) * self._size] = mask


def language_of(text: str) -> Language:
    """The answers that a constraint's text allows."""
    return frozenset(tuple(map(int, each.split())) for each in text.split("|"))
