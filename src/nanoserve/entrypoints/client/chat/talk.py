"""The conversation itself: messages in, answers out, the commands that begin with a slash, and how all of it looks.

In a terminal an answer is Markdown. What is settled (whole blocks) is printed once and scrolls away; only the block that
still grows is drawn again, so that long answers neither flicker nor are cut off.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import attrs
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.errors import NanoserveError, PromptTooLongError

COMMANDS: Final = (
    ("/reset", "forget the conversation, keep the system prompt"),
    ("/system TEXT", "set the system prompt and forget the conversation; without TEXT, remove it"),
    ("/stats", "tokens, rates and times"),
    ("/help", "this list"),
    ("/quit", "leave, as Ctrl-D does"),
    ("Ctrl-C", "stops the answer; at the prompt, leaves"),
    ("\\", "at the end of a line: the message goes on in the next one"),
)
TOY_NOTE: Final = "This is the model in the box: 7 million parameters, made to tell stories. A real one: nanoserve chat Qwen/Qwen3-0.6B"
REDRAW_SECONDS: Final = 0.06
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FENCE: Final = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
Message = dict[str, str]


@attrs.define
class AnswerCost:
    """One answer; what generates it fills in the tokens, the conversation the seconds.

    Attributes:
        prompt_tokens: of the whole conversation; 0 where they are not counted.
        first_seconds: until its first text; None where there was none. `seconds` until its end.
        finish_reason: why it ended; None where it was stopped.
        called: the tool that it ended with a call of; nobody is there to run it.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_seconds: float | None = None
    seconds: float = 0.0
    finish_reason: str | None = None
    called: str | None = None

    @property
    def rate(self) -> float:
        """Tokens per second, the wait for the first one not counted where there is a second one."""
        if self.first_seconds is not None and self.output_tokens > 1:
            return (self.output_tokens - 1) / max(self.seconds - self.first_seconds, 1e-9)
        return self.output_tokens / self.seconds if self.seconds else 0.0


@attrs.frozen
class Said:
    """More of an answer, or of what the model thinks before it."""

    text: str
    is_thought: bool = False


Answering = Callable[[Sequence[Message], AnswerCost], Generator[Said]]
"""The answer as it grows; closing it, or Ctrl-C, stops the computation. Raises `NanoserveError`."""


class Screen:
    """Where answers and notes are shown; this one is plain: answers on standard output, the rest on standard error."""

    def __init__(self) -> None:
        self._ends_line = True
        self._is_thinking = False

    def write(self, text: str) -> None:
        """More of an answer."""
        sys.stdout.write(text)
        sys.stdout.flush()
        self._ends_line = text.endswith("\n")

    def think(self, text: str) -> None:
        """More of what the model thinks: no part of the answer."""
        print(text, end="", flush=True, file=sys.stderr)  # noqa: T201 - the chat's own voice
        self._is_thinking = True

    def end(self) -> None:
        """The answer is over, or the reasoning before it; harmless where there was none."""
        if self._is_thinking:
            self._is_thinking = False
            self.note("")
        if not self._ends_line:
            self.write("\n")

    def note(self, text: str) -> None:
        """A line that is no part of the conversation."""
        print(text, file=sys.stderr)  # noqa: T201 - the chat's own voice

    def list(self, rows: Sequence[tuple[str, str]]) -> None:
        """Names and values."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.note(f"{name:<{width}}  {value}")


class TerminalScreen(Screen):
    """Markdown, colours; what a model says cannot steer the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live: Live | None = None
        self._growing = ""
        self._drawn = 0.0

    def write(self, text: str) -> None:
        """Print what is settled, draw the rest again."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        settled, self._growing = split_settled(self._growing + without_controls(text))
        if settled:
            self._print(settled)
        if settled or time.monotonic() - self._drawn > REDRAW_SECONDS:
            self._live.update(_markdown(self._growing), refresh=True)
            self._drawn = time.monotonic()

    def think(self, text: str) -> None:
        """Dimmed, as it comes."""
        if self._live is not None:
            self.end()
        self._console.print(Text(without_controls(text), style="dim"), end="")
        self._is_thinking = True

    def end(self) -> None:
        """Print what has grown last."""
        if self._is_thinking:
            self._console.print()
            self._is_thinking = False
        if self._live is None:
            return
        self._live.update("")
        self._live.stop()
        self._live = None
        if self._growing.strip():
            self._print(self._growing)
        self._growing = ""

    def note(self, text: str) -> None:
        """Dimmed."""
        self._console.print(Text(without_controls(text), style="dim"))

    def list(self, rows: Sequence[tuple[str, str]]) -> None:
        """In columns."""
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self._console.print(table)

    def _print(self, text: str) -> None:
        self._console.print(_markdown(text))
        self._console.print()


def choose_screen(*, interactive: bool) -> Screen:
    """Rendered where a person looks at a terminal that can be drawn on."""
    console = Console(highlight=False)
    if interactive and console.is_terminal and not console.is_dumb_terminal:
        return TerminalScreen(console)
    return Screen()


def split_settled(text: str) -> tuple[str, str]:
    """The blocks of a Markdown text that more text cannot change, and the rest: cut at the last empty line outside fences."""
    end = len(text)
    while (end := text.rfind("\n\n", 0, end)) >= 0:
        if len(_FENCE.findall(text[:end])) % 2 == 0:
            return text[:end].strip("\n"), text[end + 2 :]
    return "", text


def without_controls(text: str) -> str:
    """Line breaks and tabs stay; what would move the cursor, colour or reorder the text becomes U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


def _markdown(text: str) -> Markdown:
    return Markdown(text, hyperlinks=False)


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """Ctrl-C waits until something is drawn: what is half drawn would be drawn again."""
    with deferring_interrupts() as interruption:
        yield
    if interruption.pending:
        raise KeyboardInterrupt


@attrs.define
class Talk:
    """One conversation; `interactive` goes on after an error or Ctrl-C, a pipe ends.

    Attributes:
        name: of what answers, as the user sees it.
        system: stays when the messages are forgotten.
        is_toy: it is the model in the box.
    """

    name: str
    answering: Answering
    screen: Screen
    interactive: bool
    system: str | None = None
    is_toy: bool = False
    messages: list[Message] = attrs.field(factory=list)
    costs: list[AnswerCost] = attrs.field(factory=list)

    def run(self, lines: Iterable[str]) -> None:
        """Answer every message until they end or the user leaves."""
        if self.interactive:
            self.screen.note(f"{self.name}; /help lists what you can do")
            if self.is_toy:
                self.screen.note(TOY_NOTE)
        for line in lines:
            if not line.startswith("/"):
                self._reply(line)
            elif not self._run_command(line):
                return

    def _run_command(self, line: str) -> bool:
        """Whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self.messages.clear()
                self.screen.note("the conversation is forgotten")
            case "/system":
                self.system = rest.strip() or None
                self.messages.clear()
                self.screen.note(f"the system prompt is {'set' if self.system else 'removed'}")
            case "/stats":
                self.screen.list(self._statistics())
            case "/help":
                self.screen.list(COMMANDS)
            case _:
                self.screen.note(
                    f"{name} is no command; /help lists them. A space in front makes it a message."
                )
        return True

    def _reply(self, text: str) -> None:
        cost, pieces = AnswerCost(), list[str]()
        try:
            self._show(text, cost, pieces)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self.screen.note("(stopped)")
        except NanoserveError as error:
            if not self.interactive:
                raise
            is_full = isinstance(error, PromptTooLongError)
            self.screen.note(f"{error}{'; /reset starts over' if is_full else ''}")
            return
        if pieces:  # a question without any answer is forgotten: templates want answers between questions
            answer = {"role": "assistant", "content": "".join(pieces)}
            self.messages += [{"role": "user", "content": text}, answer]
            self.costs.append(cost)
        if cost.called is not None:
            self.screen.note(f"(the model called the tool {cost.called!r}; nanoserve chat has no tools)")
        if cost.finish_reason == "length":
            self.screen.note("(cut off: the answer reached max_tokens or the end of the context)")

    def _show(self, text: str, cost: AnswerCost, pieces: list[str]) -> None:
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = [*opening, *self.messages, {"role": "user", "content": text}]
        began, was_thought = time.monotonic(), False
        try:
            with contextlib.closing(self.answering(asked, cost)) as answer:
                for piece in answer:
                    if cost.first_seconds is None:
                        cost.first_seconds = time.monotonic() - began
                    with _unbroken():
                        self._write(piece, was_thought=was_thought)
                    if not piece.is_thought:
                        pieces.append(piece.text)
                    was_thought = piece.is_thought
        finally:
            cost.seconds = time.monotonic() - began
            with _unbroken():
                self.screen.end()

    def _write(self, piece: Said, *, was_thought: bool) -> None:
        if piece.is_thought:
            self.screen.think(piece.text)
            return
        if was_thought:
            self.screen.end()
        self.screen.write(piece.text)

    def _statistics(self) -> list[tuple[str, str]]:
        """Of the last answer and of all, as names and values."""
        if not self.costs:
            return [("answers", "none yet")]
        last, generated = self.costs[-1], sum(each.output_tokens for each in self.costs)
        seconds = sum(each.seconds for each in self.costs)
        first = "none" if last.first_seconds is None else f"{1000 * last.first_seconds:.0f} ms"
        return [
            (
                "last answer",
                f"{counted(last.output_tokens, 'token')}, {last.rate:.1f} tok/s, first text after {first}",
            ),
            (
                "conversation",
                f"{last.prompt_tokens + last.output_tokens} tokens, {len(self.messages)} messages",
            ),
            ("all answers", f"{len(self.costs)}: {counted(generated, 'token')} in {seconds:.1f} s"),
        ]
