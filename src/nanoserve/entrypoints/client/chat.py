"""`nanoserve chat`, once its settings are read: a conversation with a model in this process, or with a server.

In a terminal an answer is Markdown. Finished blocks are printed once and scroll away; only the block that
still grows is drawn again, so that long answers neither flicker nor are cut off.
"""

from __future__ import annotations

import contextlib
import re
import sys
import termios
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import attrs
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from nanoserve.entrypoints.app.answer import read_events
from nanoserve.entrypoints.app.generation import choose_reading
from nanoserve.entrypoints.client.server import OpenAIServer, open_server, read_address
from nanoserve.entrypoints.compose.bootstrap import assemble, leave_unread
from nanoserve.entrypoints.compose.config.command_settings import AnswerSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, settings_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.errors import BadValueError, NanoserveError, PromptTooLongError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.tool_calls import CallBegun, ReasoningDelta, TextDelta

HELP: Final = """\
/reset        forget the conversation, keep the system prompt
/system TEXT  set the system prompt and forget the conversation; without TEXT, remove it
/stats        tokens, rates and times
/help         this list
/quit         leave, as Ctrl-D does
Ctrl-C        stops the answer; at the prompt, leaves
\\             at the end of a line: the message goes on in the next one"""
TOY_NOTE: Final = "This is the model in the box: 7 million parameters, made to tell stories. A real one: nanoserve chat Qwen/Qwen3-0.6B"
REDRAW_SECONDS: Final = 0.06
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FENCE: Final = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
Message = dict[str, str]


@attrs.define
class Said:
    """More of an answer, or of its reasoning; and the figures of the whole so far.

    Attributes:
        prompt_tokens: of the whole conversation; 0 if they are not counted.
        finish_reason: why it ended; None if it has not, or was stopped.
        called: the tool that it ended with a call of; nothing here can run it.
    """

    text: str = ""
    is_thought: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    called: str | None = None


Answering = Callable[[Sequence[Message]], Generator[Said]]
"""The answer as it grows; closing it, or Ctrl-C, stops the computation. Raises `NanoserveError`."""


def run_chat(configuration: Configuration, *, key: str | None, sampling: tuple[Setting, ...]) -> None:
    """Talk until the input ends; raises whatever goes wrong before, and in a pipe also meanwhile."""
    with contextlib.ExitStack() as open_until_the_end:
        if configuration.client.url is None:
            name, answering = configuration.engine.model or "the built-in model", _load(configuration)
        else:
            _refuse_engine_flags(configuration)
            address = read_address(configuration.client.url, key)
            server = open_until_the_end.enter_context(open_server(address))
            model = server.find_model(configuration.engine.model).id
            given = configuration.given([each.name for each in sampling])
            fields = {each: value for each, value in given.items() if value is not None}
            name, answering = f"{model} at {address.url}", _answers_of_server(server, model, fields)
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        talk = Talk(answering, Screen(interactive=interactive), configuration.generate.system)
        if interactive:
            talk.screen.note(f"{name}; /help lists what you can do")
            if configuration.client.url is None and configuration.engine.model is None:
                talk.screen.note(TOY_NOTE)
        with contextlib.closing(messages(interactive=interactive)) as lines:
            talk.run(lines)


def _load(configuration: Configuration) -> Answering:
    leave_unread()
    with Console(stderr=True).status("loading the model"):
        session = Session(assemble(configuration.engine))
    log_model(session.assembly)
    defaults = session.assembly.defaults
    sampling = configuration.with_model_defaults(defaults.values, defaults.origin).sampling
    read = choose_reading(session.assembly.dialect_facts, configuration.answers.dialect)

    def answer(asked: Sequence[Message]) -> Generator[Said]:
        prompt = session.read_conversation(asked)
        reading = None if read is None else read(prompt.text or "")
        parser = None if reading is None else reading.parser()
        job = session.job(prompt, sampling, reading=reading)
        with contextlib.closing(session.run([job])) as running:
            for event in running:
                if not isinstance(event, TokensGenerated):
                    continue
                reason = event.finish_reason and event.finish_reason.value
                so_far = Said("", False, len(prompt.token_ids), event.num_generated, reason)
                for each in read_events(event, parser):
                    if isinstance(each, CallBegun):
                        yield attrs.evolve(so_far, called=each.name)
                        return
                    if isinstance(each, ReasoningDelta | TextDelta):
                        yield attrs.evolve(
                            so_far, text=each.text, is_thought=isinstance(each, ReasoningDelta)
                        )
                yield so_far

    return answer


def _answers_of_server(server: OpenAIServer, model: str, fields: dict[str, object]) -> Answering:
    """`fields` are sampling parameters, sent as they are; where the server counts no tokens, pieces are counted."""

    def answer(asked: Sequence[Message]) -> Generator[Said]:
        so_far = Said()
        with contextlib.closing(server.chat(model, asked, **fields)) as chunks:
            for chunk in chunks:
                so_far.finish_reason = chunk.choice.finish_reason or so_far.finish_reason
                so_far.output_tokens += bool(chunk.said or chunk.thought)
                if chunk.usage is not None:
                    so_far.prompt_tokens = chunk.usage.prompt_tokens
                    so_far.output_tokens = max(so_far.output_tokens, chunk.usage.completion_tokens)
                if chunk.thought:
                    yield attrs.evolve(so_far, text=chunk.thought, is_thought=True)
                yield attrs.evolve(so_far, text=chunk.said)

    return answer


def _refuse_engine_flags(configuration: Configuration) -> None:
    """A flag about an engine that is somewhere else would be ignored in silence."""
    for each in (*settings_of(EngineSettings), *settings_of(AnswerSettings)):
        if each.name != "model" and configuration.values[each.name].origin == each.flag:
            message = "is decided by the server: leave it out, or leave --url out to load the model here"
            raise BadValueError(each.name, message)


class Screen:
    """Shows answers: as Markdown in a terminal that can be drawn on; elsewhere plain, the rest on standard error."""

    def __init__(self, *, interactive: bool, console: Console | None = None) -> None:
        self.interactive = interactive
        out = console or Console(highlight=False)
        self._draws = interactive and out.is_terminal and not out.is_dumb_terminal
        self._notes = out if self._draws else Console(stderr=True, highlight=False, soft_wrap=True)
        self._console = out
        self._live: Live | None = None
        self._growing = ""
        self._drawn = 0.0
        self._thinks = False
        self._ends_line = True

    def write(self, text: str) -> None:
        """More of an answer: print finished blocks, draw the rest again."""
        if self._thinks:
            self.end()
        if not self._draws:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._ends_line = text.endswith("\n")
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        settled, self._growing = split_settled(self._growing + without_controls(text))
        if settled:
            self._print(settled)
        if settled or time.monotonic() - self._drawn > REDRAW_SECONDS:
            self._live.update(Markdown(self._growing, hyperlinks=False), refresh=True)
            self._drawn = time.monotonic()

    def think(self, text: str) -> None:
        """More of the model's reasoning, which is no part of the answer."""
        if not self._thinks:
            self.end()
        self.note(text, end="")
        self._thinks = True

    def end(self) -> None:
        """The answer is over, or the reasoning before it; harmless where there was none."""
        if self._thinks:
            self._thinks = False
            self.note("")
        if self._live is not None:
            self._live.update("")
            self._live.stop()
            self._live = None
            if self._growing.strip():
                self._print(self._growing)
            self._growing = ""
        if not self._ends_line:
            self.write("\n")

    def note(self, text: str, end: str = "\n") -> None:
        """Show a line that is no part of the conversation."""
        self._notes.print(Text(without_controls(text), style="dim"), end=end)

    def _print(self, text: str) -> None:
        self._console.print(Markdown(text, hyperlinks=False))
        self._console.print()


def split_settled(text: str) -> tuple[str, str]:
    """The blocks of a Markdown text that more text cannot change, and the rest: cut at the last empty line outside fences."""
    end = len(text)
    while (end := text.rfind("\n\n", 0, end)) >= 0:
        if len(_FENCE.findall(text[:end])) % 2 == 0:
            return text[:end].strip("\n"), text[end + 2 :]
    return "", text


def without_controls(text: str) -> str:
    """Line breaks and tabs stay; characters that move the cursor, colour or reorder the text become U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """Ctrl-C waits until drawing is done: half-drawn text would be drawn again."""
    with deferring_interrupts() as interruption:
        yield
    if interruption.pending:
        raise KeyboardInterrupt


@attrs.define
class Talk:
    """One conversation; in a terminal it goes on after an error or Ctrl-C, a pipe ends. `system` stays when the messages are forgotten."""

    answering: Answering
    screen: Screen
    system: str | None = None
    messages: list[Message] = attrs.field(factory=list)
    statistics: str = "no answers yet"

    def run(self, lines: Iterable[str]) -> None:
        """Answer every message until they end or the user leaves."""
        for line in lines:
            if line.partition(" ")[0] in {"/quit", "/exit"}:
                return
            if line.startswith("/"):
                self.screen.note(self._run_command(line))
            else:
                self._reply(line)

    def _run_command(self, line: str) -> str:
        name, _, rest = line.partition(" ")
        match name:
            case "/reset":
                self.messages.clear()
                return "the conversation is forgotten"
            case "/system":
                self.system = rest.strip() or None
                self.messages.clear()
                return f"the system prompt is {'set' if self.system else 'removed'}"
            case "/stats":
                return self.statistics
            case "/help":
                return HELP
        return f"{name} is no command; /help lists them. A space in front makes it a message."

    def _reply(self, text: str) -> None:
        pieces, last = list[str](), Said()
        try:
            with contextlib.closing(self._shown(text)) as shown:
                for last in shown:
                    pieces.append("" if last.is_thought else last.text)
        except KeyboardInterrupt:
            if not self.screen.interactive:
                raise
            self.screen.note("(stopped)")
        except NanoserveError as error:
            if not self.screen.interactive:
                raise
            is_full = isinstance(error, PromptTooLongError)
            self.screen.note(f"{error}{'; /reset starts over' if is_full else ''}")
            return
        # A question without any answer is forgotten: templates want answers between questions.
        if answer := "".join(pieces):
            said = {"role": "assistant", "content": answer}
            self.messages += [{"role": "user", "content": text}, said]
        if last.called is not None:
            self.screen.note(f"(the model called the tool {last.called!r}; nanoserve chat has no tools)")
        if last.finish_reason == "length":
            self.screen.note("(cut off: the answer reached max_tokens or the end of the context)")

    def _shown(self, text: str) -> Generator[Said]:
        """The pieces of an answer, each already on the screen."""
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = [*opening, *self.messages, {"role": "user", "content": text}]
        began, first, piece = time.monotonic(), None, Said()
        try:
            with contextlib.closing(self.answering(asked)) as answer:
                for piece in answer:
                    first = first or (time.monotonic() if piece.text else None)
                    with _unbroken():
                        if piece.is_thought:
                            self.screen.think(piece.text)
                        elif piece.text:
                            self.screen.write(piece.text)
                    yield piece
        finally:
            with _unbroken():
                self.screen.end()
            if first is not None:
                seconds, count = time.monotonic() - first, piece.output_tokens
                rate = f"{(count - 1) / seconds:.1f} tok/s, " if count > 1 and seconds else ""
                self.statistics = (
                    f"last answer: {counted(count, 'token')}, {rate}first text after {1000 * (first - began):.0f} ms; "
                    f"conversation: {piece.prompt_tokens + count} tokens, {len(self.messages) + 2} messages"
                )


def messages(*, interactive: bool) -> Generator[str]:
    """One message after the other, until the input ends; a line that ends in a backslash goes on in the next.

    Ctrl-C at the prompt ends them as well. Text typed during an answer waits for the next prompt. Raises `BadValueError` for
    bytes that are no text.
    """
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - gives `input` its editing and history, where there is one
    read = input if interactive else _read_pipe
    ends = (EOFError, KeyboardInterrupt) if interactive else (EOFError,)
    try:
        while True:
            message = read("> ")
            while message.endswith("\\"):
                message = f"{message[:-1]}\n{read('. ')}"
            if message.strip():
                with _silent_keyboard() if interactive else contextlib.nullcontext():
                    yield message
    except ends:
        if interactive:
            print()  # noqa: T201 - the prompt's line ends


@contextlib.contextmanager
def _silent_keyboard() -> Iterator[None]:
    """Keys are not shown meanwhile: they would move the cursor under an answer that is being drawn."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(keyboard, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _read_pipe(_prompt: str) -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: byte 0x{line[error.start]:02x} at offset {error.start} of a line"
        raise BadValueError("stdin", message) from None
