"""Answers that follow grammars, as the engine knows them: which worker has which, and what they have said."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Final

import attrs

from nanoserve.adapters.llguidance.crew import CrewLostError, Worker
from nanoserve.adapters.llguidance.serving import LONGEST, Say, State, Word, stamp
from nanoserve.ports.grammar import Grammar, Pending

FULL_BYTES: Final = 32 << 20
"""Bytes of all states that a lexer may have."""
CHEAP_SECONDS: Final = 0.05
"""A grammar that takes less is made by every worker that has answers of it."""
USES: Final = 64
"""Answers of a lexer, whose states become more with each, before it is made again."""
TRIES: Final = 2
"""Crews that an answer or a constraint may end before it fails."""
_NUMBERS: Final = itertools.count(1)


class Living:
    """The approximate bytes of cached and used grammars; thread-safe."""

    def __init__(self) -> None:
        self._sizes = weakref.WeakKeyDictionary[Compiled, int]()
        self._lock = threading.Lock()

    def add(self, made: Compiled, size: int) -> None:
        """Count a grammar until the last of its answers is gone."""
        with self._lock:
            self._sizes[made] = size

    def total(self) -> int:
        """Bytes of all; a lexer that has all its states counts as those."""
        with self._lock:
            return sum(FULL_BYTES if made.is_full else size for made, size in self._sizes.items())


@attrs.define(eq=False)
class Compiled:
    """A constraint as one worker has it, under a number.

    Attributes:
        ends: as in `Matcher`, and `names_ids`, as in the worker's matcher.
        seconds: of a processor, what making it took.
        answers: how many it has served.
        is_full: whether its lexer may have no more states, so that it fails every answer that needs a new one.
    """

    worker: Worker
    number: int
    ends: frozenset[int]
    names_ids: bool
    seconds: float
    answers: int = 0
    is_full: bool = False

    def __del__(self) -> None:
        self.worker.freed.append((Say.DROP, self.number, 0))


Make = Callable[[str, int], Future[Compiled]]


class CompiledGrammar(Pending[Grammar]):
    """A constraint, whom it is made for last, and the workers that make it; fulfils `Grammar` and the `Pending` one.

    Attributes:
        made: by the workers' places.
        loads: of each worker, how many answers it has.
        size: bytes that it is counted for.
        ends, seconds: as in `Compiled`, once it is there.
    """

    size, seconds = 0, 0.0
    ends: AbstractSet[int] = frozenset()

    def __init__(self, make: Make, loads: list[int], client: str, first: int) -> None:
        self._make, self.loads = make, loads
        self.client = client
        self._first = make(client, first)
        self.made = {first: [self._first]}

    def done(self) -> bool:
        return self._first.done()

    def result(self) -> CompiledGrammar:
        first = self._first.result()
        self.ends, self.seconds = first.ends, first.seconds
        return self

    def cancel(self) -> bool:
        return self._first.cancel()

    @property
    def is_void(self) -> bool:
        """True if nobody will make it: it is cancelled, or the workers were lost."""
        first = self._first
        return first.done() and (first.cancelled() or isinstance(first.exception(), CrewLostError))

    def matcher(self) -> Answer:
        return Answer(self)

    def place(self) -> int:
        """The worker for one more answer: one that has the grammar, unless others have less to do and it is cheap to make."""
        has = [index for index, made in self.made.items() if any(map(_is_sound, made))]
        places = has if has and self.seconds >= CHEAP_SECONDS else range(len(self.loads))
        return min(places, key=lambda each: (self.loads[each] + (each not in self.made), each not in has))

    def made_by(self, index: int) -> Compiled | str | None:
        """The grammar of a worker for one more answer, or an error, or nothing yet. A lexer grows with every answer: it is made again in time, and serves until then."""
        made = self.made.setdefault(index, [])
        failed = [
            str(each.exception())
            for each in made
            if each.done() and not each.cancelled() and each.exception()
        ]
        made[:] = [each for each in made if not each.done() or _is_sound(each)]
        there = [each.result() for each in made if _is_sound(each)]
        if failed and not made:
            return failed[0]
        if all(each.answers >= USES for each in there) and len(made) == len(there):
            made.append(self._make(self.client, index))
            if self._first.done() and not _is_sound(self._first):
                self._first = made[-1]  # whoever comes later waits for it, and the other one is gone
        return min(there, key=lambda each: each.answers, default=None)


def _is_sound(made: Future[Compiled]) -> bool:
    if not made.done() or made.cancelled() or made.exception():
        return False
    return not made.result().is_full and not made.result().worker.crew.is_lost


_NOWHERE: Final = memoryview(bytes(8 * Word.ALL)).cast("q"), memoryview(b""), memoryview(b"")
"""The words and masks of who has no seat."""


class Answer:
    """The position of an answer: the tokens that it has said, and who knows what may come next. Fulfils `Matcher`.

    Attributes:
        compiled: the grammar that a worker follows it by; None before, and once that worker is lost.
        stamp: of its next mask, and `place`, where that is in the `memory` of all workers; `ahead`, how many are asked for behind it.
        crews: how many have been lost by the worker that had it.
        error: why no more of it can be said.
    """

    compiled: Compiled | None = None
    words, mask, masks = _NOWHERE
    memory = memoryview(b"")
    seat, place, ahead, crews, asked, error = 0, 0, 0, 0, 0, ""

    def __init__(self, grammar: CompiledGrammar, said: Sequence[int] = ()) -> None:
        self.grammar, self.said, self.index = grammar, [*said], grammar.place()
        self.number, self.ends = new_number(), grammar.ends
        self.stamp = stamp(self.number, len(said))
        grammar.loads[self.index] += 1
        grammar.made_by(self.index)  # begins it

    def __del__(self) -> None:
        self.grammar.loads[self.index] -= 1
        if self.compiled is not None:
            self.compiled.worker.freed.append((Say.CLOSE, self.number, self.seat))

    def may_end(self) -> bool:
        """As in `Matcher`, by its newest mask."""
        return bool(self.words[Word.STATE] & State.MAY_END)

    @property
    def is_ready(self) -> bool:
        """True if its newest mask is there."""
        return abs(self.words[Word.MASK]) == self.stamp

    def tell(self, command: int, tokens: Sequence[int]) -> None:
        """Have its worker told a command with tokens."""
        assert self.compiled is not None
        self.compiled.worker.tell(command, self.number, tokens)

    def is_open(self) -> bool:
        """True if a worker follows it; one begins to, if it has the grammar and a seat."""
        if self.compiled is not None and (crew := self.compiled.worker.crew).is_lost:
            self.crews += crew.culprit == self.index
            self.compiled, (self.words, self.mask, self.masks) = None, _NOWHERE
            self.memory = self.masks
            if self.crews >= TRIES:
                self.error = f"its grammar has ended a process {TRIES} times"
        if self.compiled is not None or self.error:
            return not self.error
        made = self.grammar.made_by(self.index)
        if isinstance(made, str):
            self.error = made
        if not isinstance(made, Compiled) or (seat := made.worker.take_seat()) is None:
            return False
        self.compiled, self.seat, seats = made, seat, made.worker.seats
        self.memory, self.place = seats.memory, seats.place(seat)
        self.words, self.mask, self.masks = seats.of(seat)
        made.answers += 1
        made.worker.queue.extend((Say.OPEN, self.number, seat, made.number))
        for first in range(0, len(self.said), LONGEST):
            self.tell(Say.TOKENS, self.said[first : first + LONGEST])
        return True


def new_number() -> int:
    """Another one; those that come again after so many are long gone."""
    return next(_NUMBERS) % (1 << 31)
