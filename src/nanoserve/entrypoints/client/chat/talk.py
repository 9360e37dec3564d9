"""The conversation itself: messages in, answers out, and the commands that begin with a slash."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.client.chat.screen import Screen
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
Message = dict[str, str]


@attrs.define
class AnswerCost:
    """One answer; what generates it fills in the tokens, the conversation the seconds.

    Attributes:
        prompt_tokens: of the whole conversation; 0 where they are not counted.
        first_seconds: until its first text; None where there was none. `seconds` until its end.
        finish_reason: why it ended; None where it was stopped.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_seconds: float | None = None
    seconds: float = 0.0
    finish_reason: str | None = None

    @property
    def rate(self) -> float:
        """Tokens per second, the wait for the first one not counted where there is a second one."""
        if self.first_seconds is not None and self.output_tokens > 1:
            return (self.output_tokens - 1) / max(self.seconds - self.first_seconds, 1e-9)
        return self.output_tokens / self.seconds if self.seconds else 0.0


Answering = Callable[[Sequence[Message], AnswerCost], Generator[str]]
"""The answer as it grows; closing it, or Ctrl-C, stops the computation. Raises `NanoserveError`."""


@attrs.define
class Talk:
    """One conversation; `interactive` goes on after an error or Ctrl-C, a pipe ends.

    Attributes:
        name: of what answers, as the user sees it.
        system: stays when the messages are forgotten.
    """

    name: str
    answering: Answering
    screen: Screen
    interactive: bool
    system: str | None = None
    messages: list[Message] = attrs.field(factory=list)
    costs: list[AnswerCost] = attrs.field(factory=list)

    def hold(self, lines: Iterable[str]) -> None:
        """Answer every message until they end or the user leaves."""
        if self.interactive:
            self.screen.note(f"{self.name}; /help lists what you can do")
        for line in lines:
            if not line.startswith("/"):
                self._reply(line)
            elif not self._obey(line):
                return

    def _obey(self, line: str) -> bool:
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
            self._keep(text, cost, pieces)
            if not self.interactive:
                raise
            self.screen.note("(stopped)")
        except NanoserveError as error:
            if not self.interactive:
                raise
            is_full = isinstance(error, PromptTooLongError)
            self.screen.note(f"{error}{'; /reset begins anew' if is_full else ''}")
        else:
            self._keep(text, cost, pieces)
            if cost.finish_reason == "length":
                self.screen.note("(cut off: the answer reached max_tokens or the end of the context)")

    def _show(self, text: str, cost: AnswerCost, pieces: list[str]) -> None:
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = [*opening, *self.messages, {"role": "user", "content": text}]
        began = time.monotonic()
        try:
            with contextlib.closing(self.answering(asked, cost)) as answer:
                for piece in answer:
                    if cost.first_seconds is None:
                        cost.first_seconds = time.monotonic() - began
                    pieces.append(piece)
                    self.screen.write(piece)
        finally:
            cost.seconds = time.monotonic() - began
            self.screen.end()

    def _keep(self, text: str, cost: AnswerCost, pieces: list[str]) -> None:
        """A question without any answer is not remembered: templates want answers between questions."""
        if pieces:
            answer = {"role": "assistant", "content": "".join(pieces)}
            self.messages += [{"role": "user", "content": text}, answer]
            self.costs.append(cost)

    def _statistics(self) -> list[tuple[str, str]]:
        """Of the last answer and of all, as names and values."""
        if not self.costs:
            return [("answers", "none yet")]
        last, generated = self.costs[-1], sum(each.output_tokens for each in self.costs)
        seconds = sum(each.seconds for each in self.costs)
        first = "none" if last.first_seconds is None else f"{1000 * last.first_seconds:.0f} ms"
        return [
            ("last answer", f"{last.output_tokens} tokens, {last.rate:.1f} tok/s, first text after {first}"),
            (
                "conversation",
                f"{last.prompt_tokens + last.output_tokens} tokens, {len(self.messages)} messages",
            ),
            ("all answers", f"{len(self.costs)}: {generated} tokens in {seconds:.1f} s"),
        ]
