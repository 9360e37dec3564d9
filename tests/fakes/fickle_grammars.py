"""Grammars whose workers take their time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, Grammar, MaskBlock, Matcher, Pending
from tests.fakes.finite_grammars import FiniteGrammars


class FickleGrammars(FiniteGrammars):
    """Compiles arbitrarily late, and is late with this share of the masks."""

    def __init__(
        self, vocab_size: int, ends: frozenset[int], dice: random.Random, *, late: float = 0.15
    ) -> None:
        super().__init__(vocab_size, ends)
        self._dice, self._share = dice, late
        self._late: dict[int, Matcher] = {}

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """Later, errors included."""
        try:
            ready = super().compile(constraint, client)
        except BadValueError as error:
            ready = Future[Grammar]()
            ready.set_exception(error)
        return Slow(ready, self._dice)

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """Some masks are rubbish so far."""
        filled = super().fill(matchers, block, drafts)()
        number, late = 0, set()
        for place, matcher in enumerate(matchers):
            if self._late.pop(id(matcher), None) is None and self._dice.random() < self._share:
                late.add(number)
                block.mask(number)[:] = bytes([0b10101010]) * block.width
            number += 1 + (len(drafts[place]) if drafts else 0)
        return lambda: Filled(late, filled.empty - late)

    def is_ready(self, matcher: Matcher, /) -> bool:
        """Now and then; the next mask is there then."""
        is_ready = self._dice.random() < 0.6
        if is_ready:
            self._late[id(matcher)] = matcher
        return is_ready


class Slow(Pending[Grammar]):
    """Done when it likes."""

    def __init__(self, ready: Pending[Grammar], dice: random.Random) -> None:
        self._ready, self._dice, self._is_done = ready, dice, False

    def done(self) -> bool:
        """Once it is, it stays so."""
        self._is_done = self._is_done or self._dice.random() < 0.5
        return self._is_done

    def result(self) -> Grammar:
        """Its grammar, or its error."""
        return self._ready.result()

    def cancel(self) -> bool:
        """It may go on for nothing."""
        return False
