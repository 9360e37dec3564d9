"""`nanoserve chat`, once its settings are read: who answers (a model in this process, or a server), and what is asked."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from nanoserve.entrypoints.app.parts import Reading, choose_reading
from nanoserve.entrypoints.client.address import read_address
from nanoserve.entrypoints.client.chat.talk import AnswerCost, Answering, Message, Said, Talk, choose_screen
from nanoserve.entrypoints.client.openai_server import OpenAIServer, open_server
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.command_settings import AnswerSettings
from nanoserve.entrypoints.compose.config.configuration import settings_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.tool_calls import AnswerEvent, CallBegun, ReasoningDelta, TextDelta

PROMPT: Final = "> "
MORE: Final = ". "


def run_chat(configuration: Configuration, *, key: str | None, sampling: tuple[Setting, ...]) -> None:
    """Talk until the input ends; raises whatever goes wrong before, and in a pipe also meanwhile."""
    if configuration.client.url is None:
        _talk(*_load(configuration), configuration)
        return
    _refuse_engine_flags(configuration)
    with open_server(read_address(configuration.client.url, key)) as server:
        model = server.find_model(configuration.engine.model).id
        given = configuration.given([each.name for each in sampling])
        fields = {name: value for name, value in given.items() if value is not None}
        answering = _answers_of_server(server, model, fields)
        _talk(f"{model} at {server.address.url}", answering, configuration)


def _talk(name: str, answering: Answering, configuration: Configuration) -> None:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    system = configuration.generate.system
    is_toy = configuration.client.url is None and configuration.engine.model is None
    talk = Talk(name, answering, choose_screen(interactive=interactive), interactive, system, is_toy)
    with contextlib.closing(messages(interactive=interactive)) as lines:
        talk.run(lines)


def _load(configuration: Configuration) -> tuple[str, Answering]:
    with Console(stderr=True).status("loading the model"):
        session = Session(assemble(configuration.engine))
    log_model(session.assembly)
    defaults = session.assembly.defaults
    sampling = configuration.with_model_defaults(defaults.values, defaults.origin).sampling
    read = choose_reading(session.assembly.dialect_facts, configuration.answers.dialect)
    return configuration.engine.model or "the built-in model", _answers_of_session(session, sampling, read)


def _answers_of_session(
    session: Session, sampling: SamplingParams, read: Callable[[str], Reading] | None
) -> Answering:
    def answer(asked: Sequence[Message], cost: AnswerCost) -> Generator[Said]:
        prompt = session.read_conversation(asked)
        reading = None if read is None else read(prompt.text or "")
        parser = None if reading is None else reading.parser()
        job = session.job(prompt, sampling, reading=reading)
        cost.prompt_tokens = len(job.prompt.token_ids)
        with contextlib.closing(session.run([job])) as running:
            for event in running:
                if not isinstance(event, TokensGenerated):
                    continue
                cost.output_tokens = event.num_generated
                cost.finish_reason = event.finish_reason and event.finish_reason.value
                if parser is not None:
                    events = parser.push(event.text, event.token_ids)
                    if event.finish_reason is not None:
                        events = [*events, *parser.close()]
                    yield from _said(events, cost)
                    if cost.called is not None:
                        return
                elif event.text:
                    yield Said(event.text)

    return answer


def _said(events: Iterable[AnswerEvent], cost: AnswerCost) -> Iterator[Said]:
    """What there is to show, up to the first call of a tool."""
    for each in events:
        if isinstance(each, CallBegun):
            cost.called = each.name
            return
        if isinstance(each, (ReasoningDelta, TextDelta)):
            yield Said(each.text, is_thought=isinstance(each, ReasoningDelta))


def _answers_of_server(server: OpenAIServer, model: str, fields: Mapping[str, Any]) -> Answering:
    """`fields` are sampling parameters, sent as they are; where the server counts no tokens, pieces are counted."""

    def answer(asked: Sequence[Message], cost: AnswerCost) -> Generator[Said]:
        pieces = 0
        with contextlib.closing(server.chat(model, asked, **fields)) as chunks:
            for chunk in chunks:
                cost.finish_reason = chunk.finish_reason or cost.finish_reason
                if chunk.usage is not None:
                    cost.prompt_tokens = chunk.usage.prompt_tokens
                    cost.output_tokens = chunk.usage.completion_tokens
                pieces += bool(chunk.text)
                cost.output_tokens = max(cost.output_tokens, pieces)
                if chunk.thought:
                    yield Said(chunk.thought, is_thought=True)
                if chunk.said:
                    yield Said(chunk.said)

    return answer


def _refuse_engine_flags(configuration: Configuration) -> None:
    """A flag about an engine that is somewhere else would be ignored in silence."""
    for each in (*settings_of(EngineSettings), *settings_of(AnswerSettings)):
        if each.name != "model" and configuration.values[each.name].origin == each.flag:
            message = "is the server's business: leave it out, or leave --url out to load the model here"
            raise BadValueError(each.name, message)


def messages(*, interactive: bool) -> Generator[str]:
    """One message after the other, until the input ends; a line that ends in a backslash goes on in the next.

    Ctrl-C at the prompt ends them as well. What is typed during an answer waits for the next prompt. Raises `BadValueError` for bytes that are no text.
    """
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - gives `input` its editing and history, where there is one
    read = input if interactive else _read_pipe
    ends = (EOFError, KeyboardInterrupt) if interactive else (EOFError,)
    try:
        while True:
            message = read(PROMPT)
            while message.endswith("\\"):
                message = f"{message[:-1]}\n{read(MORE)}"
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
