"""The growing text of an answer, for coroutines that wait for more.

Every method that is a generator yields when it needs more; its driver adds more and resumes it. Text is looked at in
small portions, so that no search runs over text that is not reached yet, and marks are matched by `str.find`: work is
linear in the answer for any text and any cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

from nanoserve.domain.text.dialects.lenient_json import LenientJson

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A coroutine that reads and returns T."""
Sink = Callable[[str], object]

END: Final = ""
"""In place of a mark or a character: the answer has ended."""
CONTROL: Final = "control token"
"""In place of a character: a control token is next."""
_PORTION: Final = 256
_BLANK: Final = " \t\r\n"
_BARE: Final = re.compile(r"[\w+\-.,: \t\r\n]+")
"""Characters outside of strings and brackets in JSON and in what is nearly JSON."""


class Reader:
    """The input that is not read yet: plain text, and at most one control token after it.

    Args:
        tokens: the marks that are control tokens; their letters in plain text are no marks.
    """

    def __init__(self, tokens: frozenset[str]) -> None:
        self.tokens = tokens
        self._text = ""
        self._token: str | None = None
        self._has_ended = False
        self._taken: list[str] | None = None

    def run(self, reading: Reading[None], text: str, *, is_token: bool) -> None:
        """Add text and resume `reading` as far as it can read."""
        if is_token:
            self._token = text
            next(reading, None)
            return
        for start in range(0, len(text), _PORTION):
            self._text += text[start : start + _PORTION]
            next(reading, None)

    def end(self, reading: Reading[None]) -> None:
        """No more comes."""
        self._has_ended = True
        next(reading, None)

    @property
    def num_held(self) -> int:
        """Characters that have come and are not read yet."""
        return len(self._text)

    def remember(self) -> None:
        """From here on keep the text that is read, marks left out, for the case that it turns out to be no call."""
        self._taken = []

    def forget(self) -> str:
        """Keep text no longer; returns what was kept."""
        taken, self._taken = "".join(self._taken or ()), None
        return taken

    def until(
        self, marks: Sequence[str], sink: Sink, *, keep_tokens: bool = False, trims: int = 0
    ) -> Reading[str]:
        """Text up to the first of the marks goes into `sink` as it comes; returns the mark, or `END`.

        Only what may be the beginning of a mark is held back. A sink that returns True stops the reading: the answer is
        `END` then, too. Control tokens other than the marks are dropped, or are text where `keep_tokens` is set. `trims`
        leaves out up to this many line breaks before a mark.
        """
        letters = [mark for mark in marks if mark not in self.tokens]
        while True:
            text = self._text
            start, found = _first(text, letters)
            if not found and self._token is not None:
                token, self._token = self._token, None
                if token in marks and token in self.tokens:
                    start, found = len(text), token
                elif keep_tokens:
                    self._text += token
                    continue
                else:
                    self._pass(len(text), sink)
                    continue
                self._text += found
            if found:
                breaks = _breaks_before(text, start, trims)
                self._pass(start - breaks, sink)
                self._text = self._text[breaks + len(found) :]
                return found
            if self._has_ended:
                self._pass(len(text), sink)
                return END
            held = held_back(text, letters)
            breaks = _breaks_before(text, len(text) - held, trims if marks else 0)
            if self._pass(len(text) - held - breaks, sink):
                return END
            yield

    def collect(self, marks: Sequence[str], limit: int) -> Reading[tuple[str, str]]:
        """Text and the mark behind it, which is `END` where more than `limit` characters come without one."""
        parts: list[str] = []
        length = 0

        def add(part: str) -> bool:
            nonlocal length
            parts.append(part)
            length += len(part)
            return length > limit

        mark = yield from self.until(marks, add)
        return "".join(parts), mark if length <= limit else END

    def peek(self) -> Reading[str]:
        """The next character, which stays; `CONTROL` before a control token, and `END`."""
        while not self._text:
            if self._token is not None:
                return CONTROL
            if self._has_ended:
                return END
            yield
        return self._text[0]

    def skip(self, characters: str = _BLANK) -> Reading[str]:
        """Leave out characters and peek at the first other one."""
        while (yield from self.peek()) in characters and self._text:
            self._take(len(self._text) - len(self._text.lstrip(characters)))
        return (yield from self.peek())

    def skip_fence(self) -> Reading[str]:
        """Leave out blanks and the opening line of a fenced block of code, and peek at the first other character."""
        if (yield from self.skip()) == "`" and (yield from self.skip("`")):
            while (yield from self.peek()).replace("_", "a").isalpha():
                self.take()
        return (yield from self.skip())

    def take(self) -> str:
        """The character that was peeked at."""
        return self._take(1)

    def put_back(self, text: str) -> None:
        """Have a mark come again, as text."""
        self._text = text + self._text

    def string(self, limit: int) -> Reading[str | None]:
        """A string in either quote, decoded, of at most `limit` characters; None if there is none."""
        parts: list[str] = []
        if (yield from self.peek()) not in {'"', "'"}:
            return None
        done = yield from self.value(parts.append, (), limit=limit)
        try:
            return str(json.loads(LenientJson.whole(f"[{''.join(parts)}]"))[0]) if done else None
        except ValueError:
            return None

    def value(self, sink: Sink, closers: Sequence[str], *, limit: int | None = None) -> Reading[bool]:
        """One JSON string, object or array goes into `sink` as it comes, unchanged. Words need no quotes, and quotes may be single.

        False if it stops being that, or is longer than `limit`: reading stops before the first character that is wrong.
        A control token is text within strings, unless it is one of the `closers`; nothing else is.
        """
        depth, quote, length = 0, "", 0
        while True:
            end, depth, quote, state = _scan(self._text, depth, quote)
            length += end
            self._pass(end, sink)
            if state is not None:
                return state
            if limit is not None and length > limit:
                return False
            if self._token is not None:
                if self._text or not quote or self._token in closers:
                    return False
                self._text, self._token = json.dumps(self._token)[1:-1], None
                continue
            if self._has_ended:
                return False
            yield

    def _pass(self, count: int, sink: Sink) -> bool:
        return count > 0 and sink(self._take(count)) is True

    def _take(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        if self._taken is not None:
            self._taken.append(taken)
        return taken


def drop(_text: str) -> None:
    """Take in text that means nothing, as between the arguments and the end of a call."""


def _first(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """The position of the first mark, and the mark; of two at one place the longer one."""
    best, found = len(text), ""
    for mark in marks:
        start = text.find(mark)
        if 0 <= start < best or (start == best < len(text) and len(mark) > len(found)):
            best, found = start, mark
    return best, found


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a mark."""
    longest = 0
    for mark in marks:
        start = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while start >= 0 and not mark.startswith(text[start:]):
            start = text.find(mark[0], start + 1)
        if start >= 0:
            longest = max(longest, len(text) - start)
    return longest


def _breaks_before(text: str, end: int, most: int) -> int:
    count = 0
    while count < min(most, end) and text[end - 1 - count] == "\n":
        count += 1
    return count


def _scan(text: str, depth: int, quote: str) -> tuple[int, int, str, bool | None]:
    """How far JSON goes: (end, depth, the quote of an open string, whether it is complete); None for neither complete nor wrong.

    An escape that is cut at the end of text is left for later.
    """
    place, size = 0, len(text)
    while place < size:
        if quote:
            end, escape = text.find(quote, place), text.find("\\", place)
            if escape >= 0 and (end < 0 or escape < end):
                if escape + 1 >= size:
                    return escape, depth, quote, None
                place = escape + 2
                continue
            if end < 0:
                return size, depth, quote, None
            place, quote = end + 1, ""
            if depth == 0:
                return place, 0, "", True
            continue
        character = text[place]
        if character in "\"'":
            quote = character
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth <= 0:
                return (place + 1 if depth == 0 else place), 0, "", depth == 0
        elif depth == 0 or not (bare := _BARE.match(text, place)):
            return place, depth, "", False
        else:
            place = bare.end()
            continue
        place += 1
    return size, depth, quote, None
