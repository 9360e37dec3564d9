"""A worker's side of grammars: a process makes the vocabulary, becomes one worker for each triple of connections, and ends with the first of them.

A worker has matchers of some answers. It is told their tokens, consumes them, and writes each next mask into shared memory without being asked.
Those that the library will surely make at once come first, and before each of the others it looks for news: such a mask may take milliseconds.
Other threads compile; the library needs no interpreter's lock for that.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import attrs
import msgspec
from llguidance import LLExecutor

from nanoserve.adapters.llguidance.compiling import Compiler
from nanoserve.adapters.llguidance.matchers import LEXER_FAILED, GrammarMatcher
from nanoserve.adapters.llguidance.reading import check
from nanoserve.adapters.llguidance.vocabulary import make_vocabulary
from nanoserve.adapters.llguidance.workers import LOW_PRIORITY, STACK_BYTES, lower_priority
from nanoserve.ports.grammar import MOST_DRAFTED, Constraint


class Say:
    """Commands: an answer's number, its seat and its grammar; its number and a list of tokens behind their count; or a number alone. A worker replies to `HEAR`."""

    OPEN, TOKENS, DRAFTS, FORCED, VALID, CLOSE, DROP, HEAR = range(8)


class Word:
    """Words of a seat: which newest mask is written (`stamp`, below 0 if there is none) and its state, which masks behind drafts, which question is answered, with how many tokens, and an error's length."""

    MASK, STATE, AHEAD, ANSWER, COUNT, ERROR, ALL = range(7)


class State:
    """Bits of a mask's state: the answer may end; nothing may come next because the lexer has all its states."""

    MAY_END, FULL = 1, 2


LONGEST: Final = 8_000
"""Tokens of a command, and words after which no other one is put into the same message."""
MOST_BYTES: Final = 1 << 17
"""Bytes of a message."""
QUICK_SECONDS: Final = 12e-6
"""A matcher whose newest mask took less has a quick one next, nearly always."""
SAMPLE: Final = 64
"""Bytes in the middle of a mask that say whether it allows many tokens: more than one of sixteen."""
SWITCH_SECONDS: Final = 1e-4
"""For which the thread that compiles may keep the interpreter's lock from masks."""
HEARD: Final = b"!"
FIRST_CULPRIT: Final = 64
"""Exit status of all workers where the first has ended by itself."""
_PR_SET_PDEATHSIG: Final = 1

Ends = tuple[socket.socket, Connection, Connection]
"""A worker's connections: what answers say and ask, what is to be compiled, and what with a low priority."""


def stamp(row: int, number: int) -> int:
    """A number that says of which answer something is, and behind how many of its tokens, or to which of its questions."""
    return row << 32 | number


@attrs.frozen
class Settings:
    """Settings of workers.

    Attributes:
        tokenizer: the text of a tokenizer.json; with `ends` and `width`, what `make_vocabulary` takes.
        num_tokens: ids from here on are never allowed.
        seats: of each worker, for as many answers; what is not used of their memory takes none.
    """

    tokenizer: str
    ends: tuple[int, ...]
    width: int
    num_tokens: int
    seats: int = 4096

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask."""
        return -(-self.width // 32) * 4

    @property
    def bytes(self) -> int:
        """Bytes of a worker's memory."""
        return self.seats * (Word.ALL * 8 + (2 + MOST_DRAFTED) * self.mask_bytes) + 8


class Seats:
    """One worker's seats in the `memory` of all: newest masks [seats, workers, width], words [workers, seats, Word.ALL], masks [workers, seats, 1 + MOST_DRAFTED, width].

    Low seats are taken first, so that their newest masks lie side by side. Behind them all, `busy` [workers] says since when a worker has been
    within a mask that may be dear, in nanoseconds; 0 outside of these.
    """

    def __init__(self, memory: memoryview, settings: Settings, index: int) -> None:
        self.count, self.width, self.memory = settings.seats, settings.mask_bytes, memory
        self._index, self._workers = index, len(memory) // settings.bytes
        self.busy = memory[-8 * (index + 1) :][:8].cast("q")

    def place(self, seat: int) -> int:
        """Where a seat's newest mask is among those of all."""
        return seat * self._workers + self._index

    def of(self, seat: int) -> tuple[memoryview, memoryview, memoryview]:
        """A seat's words, its newest mask, and its masks where it has drafts: that one again, and those behind them."""
        seats, place = self._workers * self.count, self._index * self.count + seat
        sizes, begin, found = (self.width, Word.ALL * 8, (1 + MOST_DRAFTED) * self.width), 0, []
        for size, number in zip(sizes, (self.place(seat), place, place), strict=True):
            found.append(self.memory[begin + number * size :][:size])
            begin += seats * size
        return found[1].cast("q"), found[0], found[2]

    def release(self) -> None:
        """Let go of the memory, which is there as long as an answer has a seat."""
        self.memory, self.busy = memoryview(b""), memoryview(bytes(8)).cast("q")


@attrs.define(eq=False)
class Row:
    """An answer: where its masks go, and the address of the newest; its matcher, its tokens' count, seconds that its next mask may take, and why it has no other one."""

    number: int
    words: memoryview
    mask: memoryview
    masks: memoryview
    address: int
    matcher: GrammarMatcher
    count: int = 0
    seconds: float = 0.0
    error: str = ""


class Desk:
    """A worker's loop."""

    def __init__(self, commands: socket.socket, seats: Seats, compiler: Compiler) -> None:
        self.kept: dict[int, GrammarMatcher] = {}
        self._commands, self._seats, self._compiler = commands, seats, compiler
        self._rows: dict[int, Row] = {}
        self._waiting: dict[Row, None] = {}
        self._executor: LLExecutor | None = None

    def run(self) -> None:
        """Until the other end is closed."""
        self._obey((Say.HEAR, 0))
        while True:
            try:
                news = self._commands.recv(MOST_BYTES, socket.MSG_DONTWAIT if self._waiting else 0)
            except BlockingIOError:
                self._fill_some()  # all that was said is known
                continue
            except ConnectionResetError:  # with a reply unread
                return
            if not news:
                return
            self._obey(array.array("i", news))

    def _fill_some(self) -> None:
        """Fill what is surely quick, or one that may be dear; then there may be news."""
        quick = [each for each in self._waiting if each.seconds < QUICK_SECONDS]
        self._seats.busy[0] = 0 if quick else time.monotonic_ns()
        for row in quick or [min(self._waiting, key=lambda each: each.seconds)]:
            del self._waiting[row]
            self.fill(row)
        self._seats.busy[0] = 0

    def _obey(self, words: Sequence[int]) -> None:
        place = 0
        while place < len(words):
            command, number = words[place : place + 2]
            place += 2
            if command == Say.CLOSE:
                self._waiting.pop(self._rows.pop(number), None)
            elif command == Say.DROP:
                self.kept.pop(number, None)
            elif command == Say.HEAR:
                with contextlib.suppress(OSError):  # the engine has ended, which shows soon
                    self._commands.send(HEARD)
            elif command == Say.OPEN:
                seat, grammar = words[place : place + 2]
                place += 2
                where = self._seats.of(seat)
                address = ctypes.addressof(ctypes.c_char.from_buffer(where[1]))
                row = Row(number, *where, address, self.kept[grammar].copy())
                self._rows[number] = row
                self._waiting[row] = None
            else:
                first, place = place + 1, place + 1 + words[place]
                self._do(command, self._rows[number], words[first:place])

    def _do(self, command: int, row: Row, tokens: Sequence[int]) -> None:
        if command == Say.TOKENS:
            for token in tokens:
                row.error = row.error or row.matcher.consume(token)
            row.count += len(tokens)
            self._waiting[row] = None
            return
        asked, tokens = tokens[0], tokens[1:]
        if command == Say.DRAFTS:
            self._executor = self._executor or LLExecutor(1)
            jobs = [(row.matcher.inner, 0, [*tokens])]
            address = ctypes.addressof(ctypes.c_char.from_buffer(row.masks))
            where = address, self._seats.width, 1 + MOST_DRAFTED
            self._executor.unsafe_compute_mask_ptr_with_draft_token(jobs, *where)
            row.words[Word.AHEAD] = stamp(row.number, asked)
            return
        if command == Say.FORCED:
            forced = row.matcher.forced(tokens[0])
            found = self._compiler.vocabulary.tokenize_bytes(forced)[: tokens[0]] if forced else []
            row.masks[self._seats.width :][: 4 * len(found)] = array.array("i", found).tobytes()
            row.words[Word.COUNT] = len(found)
        else:
            row.words[Word.COUNT] = row.matcher.valid(tokens)
        row.words[Word.ANSWER] = stamp(row.number, asked)

    def fill(self, row: Row) -> None:
        """Write a row's mask."""
        started, matcher, error = time.perf_counter(), row.matcher, row.error
        if not error:
            matcher.inner.unsafe_compute_mask_ptr(row.address, self._seats.width)
            if matcher.names_ids:
                self._compiler.exclude_surplus(row.mask)
        state = State.MAY_END if not error and matcher.inner.is_accepting() else 0
        # A matcher that stops where it may end has a mask that lets it.
        sign = 1
        if not state and (error or matcher.inner.is_stopped()):
            said = error.encode()[: len(row.masks)]
            row.masks[: len(said)], row.words[Word.ERROR] = said, len(said)
            sign, state = -1, State.FULL * matcher.inner.get_error().startswith(LEXER_FAILED)
        row.words[Word.STATE] = state
        row.words[Word.MASK] = sign * stamp(row.number, row.count)
        row.seconds = time.perf_counter() - started
        middle = row.mask[self._seats.width // 2 :][:SAMPLE]
        if row.seconds >= QUICK_SECONDS and 2 * int.from_bytes(middle, "little").bit_count() > SAMPLE:
            row.seconds += 1  # within a text, whose last masks are dear if it is bounded: they come last


def compile_all(
    connection: Connection, kept: dict[int, GrammarMatcher], compiler: Compiler, priority: int
) -> None:
    """Compile what is asked for, which may have to be tried out, until the other end is closed; with this priority, as `nice` counts."""
    lower_priority(priority)
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked = msgspec.msgpack.decode(connection.recv_bytes(), type=tuple[int, Constraint, bool])
            (number, constraint, tries_out), answer, started = asked, dict[str, Any](), time.thread_time()
            try:
                if tries_out:
                    check(constraint)
                kept[number] = made = compiler.make(constraint)
                answer = {"ends": sorted(made.ends), "names_ids": made.names_ids}
            except Exception as error:  # noqa: BLE001 - the library may raise anything
                answer = {"refused": (getattr(error, "parameter", ""), str(error))}
            connection.send_bytes(msgspec.msgpack.encode(answer | {"seconds": time.thread_time() - started}))


def serve(ends: Ends, seats: Seats, compiler: Compiler) -> None:
    """Work until the other ends are closed."""
    commands, *compiles = ends
    desk = Desk(commands, seats, compiler)
    for connection, priority in zip(compiles, (0, LOW_PRIORITY), strict=True):
        args = connection, desk.kept, compiler, priority
        threading.Thread(target=compile_all, args=args, name="compiling", daemon=True).start()
    desk.run()


def _become(index: int, memory: memoryview, settings: Settings, compiler: Compiler, mine: list[int]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != os.getpgrp():
        return  # the first of them has ended before
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.stack_size(STACK_BYTES)
    commands, compiles, spare = mine
    ends = socket.socket(fileno=commands), Connection(compiles), Connection(spare)
    serve(ends, Seats(memory, settings, index), compiler)


def main(memory: int, *connections: int) -> None:
    """Become the workers: file descriptors of their memory and of the connections of each. The settings come through the standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine drains first, and ends us by closing its ends
        signal.signal(number, signal.SIG_IGN)
    settings = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Settings)
    make = functools.partial(make_vocabulary, settings.tokenizer, settings.ends, settings.width)
    compiler, workers, left = Compiler(make, settings.num_tokens), list[int](), [*connections]
    mapped = memoryview(mmap.mmap(memory, len(left) // 3 * settings.bytes))
    while left:
        mine, left = left[:3], left[3:]
        if (pid := os.fork()) == 0:
            try:
                for each in left:
                    os.close(each)
                _become(len(workers), mapped, settings, compiler, mine)
            except BaseException:  # noqa: BLE001 - nothing else may run in this process
                traceback.print_exc()
            os._exit(0)
        workers.append(pid)
        for each in mine:
            os.close(each)
    ended, _ = os.wait()
    for pid in set(workers) - {ended}:
        os.kill(pid, signal.SIGKILL)
    sys.exit(FIRST_CULPRIT + workers.index(ended))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
