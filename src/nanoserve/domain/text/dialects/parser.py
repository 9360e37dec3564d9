"""Reads an answer by its dialect, incrementally, into reasoning, text and calls.

One coroutine reads the whole answer and is resumed with every piece. Text that does not parse is passed on as text; no output of
a model raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nanoserve.domain.text.dialects.calls import read_named, read_objects, read_pythonic
from nanoserve.domain.text.dialects.channels import read_channels
from nanoserve.domain.text.dialects.dialect import (
    Calls,
    Dialect,
    JsonArguments,
    KeyedCall,
    NamedCall,
    PythonicCall,
    Region,
)
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import END, Reader, Reading, drop
from nanoserve.ports.tool_calls import AnswerEvent, ArgumentsDelta, ReasoningDelta, Tool

_BREAKS: Final = 2
_OPENING: Final = frozenset("[{")
TokenText = Callable[[int], str]
"""The text of a token on its own."""


class Parser:
    """One growing answer.

    Args:
        tools: those that may be called; without any, no call is looked for.
        tokens: the marks that are control tokens of the tokenizer.
        prompt_tail: the end of the rendered prompt, where reasoning may have been opened.
        id_seed: what ids of calls are made from.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Sequence[Tool] = (),
        tokens: frozenset[str] = frozenset(),
        prompt_tail: str = "",
        id_seed: str = "",
    ) -> None:
        self.output = Output(tools, dialect.call_ids, id_seed)
        self.reader = Reader(tokens)
        if dialect.channels is not None:
            self._reading = read_channels(dialect.channels, self.reader, self.output, prompt_tail)
        else:
            self._reading = _Regions(dialect, self.reader, self.output, tokens).answer(prompt_tail)
        next(self._reading, None)

    def feed(self, text: str, *, is_token: bool = False) -> list[AnswerEvent]:
        """More of the answer: plain text, or one control token by its text."""
        self.reader.run(self._reading, text, is_token=is_token)
        return self.output.pop()

    def close(self) -> list[AnswerEvent]:
        """The last events; calls that are open end here."""
        self.reader.end(self._reading)
        return self.output.pop()


class AnswerParser:
    """Takes the pieces of one answer and gives its events out.

    Attributes:
        num_reasoning_tokens: so far, those of marks left out; a token that is partly a mark counts as what it begins with.
        is_cut: whether the answer has ended within the arguments of a call.
    """

    def __init__(
        self,
        parser: Parser,
        control_tokens: Mapping[int, str],
        reasoning: Region | None,
        *,
        reasons: bool,
        token_text: TokenText | None = None,
    ) -> None:
        self._parser = parser
        self._control_tokens = control_tokens
        self._reasoning, self._reasons = reasoning, reasons
        self.num_reasoning_tokens, self.is_cut = 0, False
        self._token_text, self._num_unsure, self._begun = token_text, 0, ""

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._parser.output.num_calls

    def push(self, text: str, token_ids: Sequence[int]) -> list[AnswerEvent]:
        """The next piece: its text, and the tokens that it came from."""
        if self._control_tokens.keys().isdisjoint(token_ids):
            return self._fed(text, token_ids)
        return [
            event
            for part, ids in split(text, token_ids, self._control_tokens)
            for event in (self._passed(part) if ids is None else self._fed(part, ids))
        ]

    def _fed(self, text: str, token_ids: Sequence[int]) -> list[AnswerEvent]:
        """Plain text of these tokens."""
        if self._token_text is not None:
            return self._spelt(text, token_ids, self._token_text)
        events = self._parser.feed(text)
        if events:
            self._reasons = type(events[-1]) is ReasoningDelta
        if self._reasons:
            self.num_reasoning_tokens += len(token_ids)
        return events

    def _spelt(self, text: str, token_ids: Sequence[int], token_text: TokenText) -> list[AnswerEvent]:
        """Plain text whose marks are no tokens: token by token, as far as their texts show where each ends."""
        text, self._begun = self._begun + text, ""
        if not token_ids:  # a stop string holds the rest of this token back
            self._begun = text
        events: list[AnswerEvent] = []
        end, last = 0, len(token_ids) - 1
        for place, token_id in enumerate(token_ids):
            start, end = end, len(text) if place == last else end + len(token_text(token_id))
            events += self._counted(text[start:end])
        return events

    def _counted(self, text: str) -> list[AnswerEvent]:
        """The text of one token; if it may be part of a mark, it counts when it turns out to be none."""
        reasoned = self._parser.output.reasons
        events = self._parser.feed(text)
        if events and type(events[0]) is ReasoningDelta:
            self.num_reasoning_tokens += self._num_unsure + 1
            self._num_unsure = 0
        elif not self._parser.output.reasons:
            self._num_unsure = 0
        elif reasoned and text.strip("\n") and self._parser.reader.num_held:
            self._num_unsure += 1
        elif reasoned:
            self.num_reasoning_tokens += 1
        return events

    def _passed(self, mark: str) -> list[AnswerEvent]:
        """A control token."""
        self._reasons = self._reasoning is not None and mark == self._reasoning.open
        return self._parser.feed(mark, is_token=True)

    def close(self) -> list[AnswerEvent]:
        """The last events, after the last piece."""
        self.num_reasoning_tokens += self._num_unsure
        events = self._parser.close()
        self.is_cut = any(isinstance(each, ArgumentsDelta) for each in events)
        return events


def split(
    text: str, token_ids: Sequence[int], control_tokens: Mapping[int, str]
) -> list[tuple[str, Sequence[int] | None]]:
    """A piece as plain texts with their tokens and control tokens with None, in order.

    Tokens that were counted but not printed are left out.
    """
    parts: list[tuple[str, Sequence[int] | None]] = []
    read, plain = 0, list[int]()
    for token_id in token_ids:
        mark = control_tokens.get(token_id)
        if mark is None:
            plain.append(token_id)
        elif (start := text.find(mark, read)) >= 0:
            parts += [(text[read:start], plain), (mark, None)]
            read, plain = start + len(mark), []
    return [part for part in [*parts, (text[read:], plain)] if part[0]]


class _Regions:
    """Reads the dialects whose reasoning and calls stand in marked regions of the text."""

    def __init__(self, dialect: Dialect, reader: Reader, output: Output, tokens: frozenset[str]) -> None:
        self._reader, self._output = reader, output
        self._reasoning = dialect.reasoning
        self._calls = dialect.calls if output.tools else None
        self._in_section = False
        self._token_opens = tuple(mark for mark in self._call_opens() if mark in tokens)

    def answer(self, prompt_tail: str) -> Reading[None]:
        """All of it."""
        reasoning = self._reasoning
        opened = reasoning is not None and prompt_tail.rstrip().endswith(reasoning.open)
        mark = reasoning.open if reasoning is not None and opened else ""
        if not mark and self._calls is not None and self._calls.bare:
            mark = yield from self._bare_calls(self._calls)
        while True:
            if mark == END:
                mark = yield from self._reader.until(self._marks(), self._output.text, trims=_BREAKS)
            if mark == END:
                return
            mark = yield from self._region(mark)

    def _region(self, mark: str) -> Reading[str]:
        """Read what a mark opens; returns the mark that follows it at once, if one does."""
        self._output.mark()
        reasoning, calls = self._reasoning, self._calls
        if reasoning is not None and mark == reasoning.open:
            closers = (reasoning.open, reasoning.close, *self._token_opens)
            self._output.reasons = True
            while mark == reasoning.open:
                mark = yield from self._reader.until(closers, self._output.reasoning, trims=_BREAKS)
            self._output.mark()
            self._output.reasons = False
            if mark != reasoning.close:
                return mark
            if calls is not None and calls.bare:
                return (yield from self._bare_calls(calls))
        elif calls is not None and calls.section is not None and mark == calls.section.open:
            self._in_section = True
        elif calls is not None and mark in calls.opens:
            return (yield from self._call(calls))
        elif calls is not None and calls.section is not None and mark == calls.section.close:
            self._in_section = False
        elif reasoning is not None:
            self._output.mark(parts=True)
        return END

    def _marks(self) -> tuple[str, ...]:
        """The marks that count in text."""
        found = [self._reasoning.open, self._reasoning.close] if self._reasoning is not None else []
        found += self._call_opens()
        calls = self._calls
        if calls is not None and calls.section is not None:
            found += [calls.section.close, *calls.opens] if self._in_section else [calls.section.close]
        return tuple(dict.fromkeys(filter(None, found)))

    def _call_opens(self) -> tuple[str, ...]:
        calls = self._calls
        if calls is None:
            return ()
        if calls.section is None:
            return calls.opens
        return (calls.section.open, *calls.opens) if calls.loose else (calls.section.open,)

    def _closers(self, calls: Calls) -> tuple[str, ...]:
        """The marks that end a call, its own first."""
        section = calls.section
        return tuple(filter(None, (calls.close, *calls.opens, section.close if section is not None else "")))

    def _call(self, calls: Calls) -> Reading[str]:
        """One call behind its open mark, or several where they are written as a list."""
        reader, output, form = self._reader, self._output, calls.form
        closers = self._closers(calls)
        reader.remember()
        mark = END
        if isinstance(form, PythonicCall):
            whole = yield from read_pythonic(reader, output)
        elif isinstance(form, KeyedCall) or (yield from self._is_keyed(form)):
            whole = yield from read_objects(reader, output, closers, listed=True)
        else:
            whole, mark = yield from read_named(form, reader, output, closers)
        output.text(reader.forget())
        if mark == END and (calls.close or not whole):
            rest = drop if whole else output.arguments if output.is_open else output.text
            mark = yield from reader.until(closers, rest, keep_tokens=not whole, trims=_BREAKS)
        output.end_call()
        return END if mark == calls.close else mark

    def _is_keyed(self, form: NamedCall) -> Reading[bool]:
        """True if a model that should write the name first writes one JSON object or a list instead."""
        return (
            isinstance(form.arguments, JsonArguments) and (yield from self._reader.skip_fence()) in _OPENING
        )

    def _bare_calls(self, calls: Calls) -> Reading[str]:
        """Calls without an open mark at the beginning of the answer, if it begins with some."""
        reader, output = self._reader, self._output
        reader.remember()
        first = yield from reader.skip_fence()
        whole = False
        if isinstance(calls.form, PythonicCall) and first == "[":
            whole = yield from read_pythonic(reader, output)
        elif first == "{":
            whole = yield from read_objects(reader, output, calls.opens, known=True)
        output.text(reader.forget())
        mark = END
        if output.is_open and not whole:
            mark = yield from reader.until(calls.opens, output.arguments)
        output.end_call()
        return mark
