"""The conversation itself: messages in, answers out, and the commands that begin with a slash."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Final

import attrs

from nanoserve.entrypoints.client.chat.conversation import Conversation, Cost
from nanoserve.entrypoints.client.chat.screen import Screen
from nanoserve.entrypoints.client.chat.speakers import Speaker
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


@attrs.define
class Talk:
    """One conversation with one speaker; `interactive` goes on after an error or Ctrl-C, a pipe ends."""

    speaker: Speaker
    screen: Screen
    conversation: Conversation
    interactive: bool

    def hold(self, messages: Iterable[str]) -> None:
        """Answer every message until they end or the user leaves."""
        if self.interactive:
            self.screen.note(f"{self.speaker.name}; /help lists what you can do")
        for message in messages:
            if message.startswith("/"):
                if not self._obey(message):
                    return
            else:
                self._reply(message)

    def _obey(self, line: str) -> bool:
        """Whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self.conversation.reset()
                self.screen.note("the conversation is forgotten")
            case "/system":
                self.conversation.system = rest.strip() or None
                self.conversation.reset()
                self.screen.note(f"the system prompt is {'set' if rest.strip() else 'removed'}")
            case "/stats":
                self.screen.list(self.conversation.statistics())
            case "/help":
                self.screen.list(COMMANDS)
            case _:
                self.screen.note(
                    f"{name} is no command; /help lists them. A space in front makes it a message."
                )
        return True

    def _reply(self, message: str) -> None:
        cost, pieces = Cost(), list[str]()
        try:
            self._show(message, cost, pieces)
        except KeyboardInterrupt:
            self._keep(message, cost, pieces)
            if not self.interactive:
                raise
            self.screen.note("(stopped)")
        except NanoserveError as error:
            if not self.interactive:
                raise
            is_full = isinstance(error, PromptTooLongError)
            self.screen.note(f"{error}{'; /reset begins anew' if is_full else ''}")
        else:
            self._keep(message, cost, pieces)
            if cost.finish_reason == "length":
                self.screen.note("(cut off: the answer reached max_tokens or the end of the context)")

    def _show(self, message: str, cost: Cost, pieces: list[str]) -> None:
        began = time.monotonic()
        try:
            with contextlib.closing(self.speaker.answer(self.conversation.asking(message), cost)) as answer:
                for text in answer:
                    if cost.first_seconds is None:
                        cost.first_seconds = time.monotonic() - began
                    pieces.append(text)
                    self.screen.write(text)
        finally:
            cost.seconds = time.monotonic() - began
            self.screen.end()

    def _keep(self, message: str, cost: Cost, pieces: list[str]) -> None:
        """A question that got no word is not remembered: templates want answers between questions."""
        if pieces:
            self.conversation.keep(message, "".join(pieces), cost)
