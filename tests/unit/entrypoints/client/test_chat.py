"""`nanoserve chat` in this process: over a scripted engine and over a server on a socket, from a pipe."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.client.chat import TOY_NOTE, Said, Screen, Talk, split_settled, without_controls
from nanoserve.entrypoints.client.server import EventReader, ProtocolError
from nanoserve.entrypoints.compose.assembly import Assembly
from tests.unit.entrypoints.scripted_world import alone, interrupt_in_turn, scripted_assembly
from tests.unit.entrypoints.server.protocols.talking_world import TalkTemplate, talking, talking_assembly
from tests.unit.entrypoints.timed_server import Behaviour, TimedServer, timed_server

Chat = Callable[..., int]
SEEDED = ("--seed", "7", "--max-tokens", "12", "--temperature", "1")


class Typed(io.TextIOWrapper):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs a chat over these lines; without torch where it is local."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(
        lines: str | bytes,
        *arguments: str,
        assembly: Assembly | None = None,
        source: type[io.TextIOWrapper] = io.TextIOWrapper,
    ) -> int:
        built = assembly or scripted_assembly()
        monkeypatch.setattr("nanoserve.entrypoints.client.chat.assemble", lambda _settings: built)
        raw = lines if isinstance(lines, bytes) else lines.encode()
        monkeypatch.setattr(sys, "stdin", source(io.BytesIO(raw)))
        try:
            return run_command(["chat", *arguments])
        except SystemExit as ended:
            return int(ended.code or 0)

    return run


@pytest.fixture
def server() -> Iterator[TimedServer]:
    with timed_server() as served:
        yield served


def test_every_answer_is_given_to_the_whole_conversation(
    chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat("hello\nwhy\n", "--system", "be kind", *SEEDED) == 0
    first = alone("system.be kind.user.hello.")
    second = alone(f"system.be kind.user.hello.assistant.{first}.user.why.")
    assert capsys.readouterr().out == f"{first}\n{second}\n"


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("arguments", [(), ("a-folder",), ("--model", "a-folder")], ids=" ".join)
def test_at_a_terminal_the_model_in_the_box_says_what_it_is_and_another_one_does_not(
    arguments: tuple[str, ...],
    is_typed: bool,
    chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_typed)
    assert chat("", *arguments, source=Typed if is_typed else io.TextIOWrapper) == 0
    said = " ".join(re.sub(r"\x1b\[\d*m", "", "".join(capsys.readouterr())).split())
    name = "a-folder" if arguments else "the built-in model"
    assert (f"{name}; /help lists what you can do" in said) is is_typed
    assert (TOY_NOTE in said) is (is_typed and not arguments)
    assert "nanoserve chat " in TOY_NOTE, "it names a real one to try"


def test_reset_forgets_all_but_the_system_prompt(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "hello\n/reset\nwhy\n/system be short\nwhy\n/system\nwhy\n"
    assert chat(lines, "--system", "be kind", *SEEDED) == 0
    shown, notes = capsys.readouterr()
    expected = [
        "system.be kind.user.hello.",
        "system.be kind.user.why.",
        "system.be short.user.why.",
        "user.why.",
    ]
    assert shown == "".join(f"{alone(each)}\n" for each in expected)
    assert [each for each in notes.splitlines() if "cut off" not in each] == [
        "the conversation is forgotten",
        "the system prompt is set",
        "the system prompt is removed",
    ]


def test_commands_answer_on_standard_error_and_quit_ends(
    chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat("/stats\nhi\n/stats\n/help\n/nonsense\n/quit\nnever\n", *SEEDED) == 0
    shown, notes = capsys.readouterr()
    assert shown == f"{alone('user.hi.')}\n"
    assert notes.startswith("no answers yet\n")
    assert "last answer: 12 tokens, " in notes
    assert " tok/s, first text after " in notes
    assert "conversation: 20 tokens, 2 messages" in notes
    assert "/reset" in notes
    assert "/nonsense is no command" in notes


def test_lines_may_go_on_and_empty_ones_say_nothing(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("\n  \nhel\\\nlo\n /help\n", *SEEDED) == 0
    first = alone("user.hello.")
    assert capsys.readouterr().out == f"{first}\n{alone(f'user.hello.assistant.{first}.user. help.')}\n"


def test_ctrl_c_ends_a_pipe_with_what_was_said(
    chat: Chat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = scripted_assembly()
    interrupt_in_turn(assembly.engine, 5, monkeypatch)
    assert chat("hello\nagain\n", *SEEDED, assembly=assembly) == 130
    shown, errors = capsys.readouterr()
    assert errors == "nanoserve: interrupted\n"
    assert shown.endswith("\n")
    assert alone("user.hello.").startswith(shown.rstrip("\n"))
    assert not assembly.engine.has_work


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("x" * 200 + "\n", "prompt: "),
        (b"ab\xff\n", "stdin: is not UTF-8 text: byte 0xff at offset 2 of a line"),
    ],
)
def test_a_mistake_ends_a_pipe_in_one_line(
    chat: Chat, capsys: pytest.CaptureFixture[str], lines: str | bytes, message: str
) -> None:
    assert chat(lines, *SEEDED) in {1, 2}
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert errors.count("\n") == 1
    assert message in errors or "context" in errors


def test_a_server_is_asked_for_what_was_set_and_nothing_else(
    chat: Chat, capsys: pytest.CaptureFixture[str], server: TimedServer
) -> None:
    server.behaviour = Behaviour(says=("one ", "two "), extras=True, key="sesame")
    arguments = ("--url", server.url, "--api-key", "sesame", "--system", "be kind")
    assert (
        chat("hi\n/stats\nbye\n", *arguments, "--temperature", "0.5", "--stop", "x", "--max-tokens", "4") == 0
    )
    shown, notes = capsys.readouterr()
    assert shown == "one two one two \n" * 2
    assert "last answer: 4 tokens" in notes
    assert server.bodies[-1] == {
        "model": "timed",
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "one two one two "},
            {"role": "user", "content": "bye"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "stop": ["x"],
        "max_tokens": 4,
    }


def test_a_question_that_got_no_word_is_forgotten(chat: Chat, server: TimedServer) -> None:
    server.behaviour = Behaviour(says=("",))
    assert chat("hi\nbye\n", "--url", server.url) == 0
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "bye"}]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(refuse=(1, 503)), "the server answered 503: try again later"),
        (Behaviour(break_after=2, error="engine died"), "the server broke off: engine died"),
        (Behaviour(break_after=2), "the connection to http://127.0.0.1:{port} broke: "),
        (
            Behaviour(break_after=2, chunked=False),
            "http://127.0.0.1:{port} broke off in the middle of an answer",
        ),
        (Behaviour(key="sesame"), "the server answered 401: who are you?; give it with --api-key"),
    ],
)
def test_what_a_server_does_wrong_is_one_line(
    chat: Chat, capsys: pytest.CaptureFixture[str], server: TimedServer, behaviour: Behaviour, message: str
) -> None:
    server.behaviour = behaviour
    assert chat("hi\n", "--url", server.url) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"nanoserve: {message.format(port=server.port)}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "{url}", "--dtype", "float32"), "dtype: is decided by the server"),
        (("--url", "{url}", "--dialect", "qwen3"), "dialect: is decided by the server"),
        (
            ("--url", "{url}", "--model", "third"),
            "model: 'third' is not served at {url}, which has timed, other",
        ),
        (("--url", "nowhere://"), "url: must look like http://127.0.0.1:8000"),
        (("--temperature", "-1"), "temperature: must be"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    chat: Chat,
    capsys: pytest.CaptureFixture[str],
    server: TimedServer,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert chat("hi\n", *(each.format(url=server.url) for each in arguments)) == 2
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert errors.startswith(f"nanoserve: {message.format(url=server.url)}")


def test_the_answers_length_is_open_unless_somebody_sets_it(
    chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat("", "--print-config", "--top-k", "3") == 0
    rows = {each.split()[0]: each.split(maxsplit=2)[1:] for each in capsys.readouterr().out.splitlines()}
    assert rows["max_tokens"] == ["none", "nanoserve chat"]
    assert rows["top_k"] == ["3", "--top-k"]


@pytest.mark.parametrize(
    ("text", "settled", "growing"),
    [
        ("one", "", "one"),
        ("one\n\ntwo", "one", "two"),
        ("one\n\ntwo\n\n", "one\n\ntwo", ""),
        ("```\na\n\nb", "", "```\na\n\nb"),
        ("x\n\n```\na\n\nb", "x", "```\na\n\nb"),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```", "c"),
    ],
)
def test_only_whole_blocks_are_settled(text: str, settled: str, growing: str) -> None:
    assert split_settled(text) == (settled, growing)


def test_nothing_that_a_model_says_steers_a_terminal() -> None:
    assert without_controls("a\x1b[2J\tb\n\x9b\u202ec\r") == "a\ufffd[2J\tb\n\ufffd\ufffdc\ufffd"


THINKING = {"hello": "<think>I greet.</think>Hi there", "again": "Hi again"}


def test_what_a_server_says_that_it_thinks_is_no_part_of_its_answer(
    chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    with talking(THINKING) as (world, template):
        assert chat("hello\nagain\n", "--url", world.url, "--max-tokens", "40") == 0
    assert capsys.readouterr() == ("Hi there\nHi again\n", "I greet.\n")
    assert [each["content"] for each in template.given["messages"]] == ["hello", "Hi there", "again"]


def test_what_a_model_in_this_process_thinks_is_no_part_of_its_answer_either(
    chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    template = TalkTemplate()
    assembly = talking_assembly(THINKING, template)
    assert chat("hello\nagain\n", "--dialect", "qwen3", "--max-tokens", "40", assembly=assembly) == 0
    assert capsys.readouterr() == ("Hi there\nHi again\n", "I greet.\n")
    assert [each["content"] for each in template.given["messages"]] == ["hello", "Hi there", "again"]


def test_a_call_is_named_and_not_shown(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    script = {
        "hello": 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    }
    assembly = talking_assembly(script, TalkTemplate())
    assert chat("hello\n", "--dialect", "qwen3", "--max-tokens", "90", assembly=assembly) == 0
    shown, notes = capsys.readouterr()
    assert shown.strip() == "Let me see."
    assert notes == "(the model called the tool 'weather'; nanoserve chat has no tools)\n"


def test_in_a_terminal_thoughts_are_dimmed_and_on_lines_of_their_own() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=80, color_system="standard")
    said = [Said("hm, ", is_thought=True), Said("so", is_thought=True), Said("yes")]
    talk = Talk(lambda _: (each for each in said), Screen(interactive=True, console=console))
    talk.run(["why"])
    assert "\x1b[2mhm, \x1b[0m\x1b[2mso\x1b[0m\n" in drawn.getvalue()
    assert talk.messages[-1]["content"] == "yes"


def test_events_are_cut_as_the_standard_says() -> None:
    events = EventReader()
    body = b": note\n:\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\nevent: empty\n\ndata:3\nid: 7\n\nevent: cut"
    pieces = [body[start : start + 5] for start in range(0, len(body), 5)]
    assert [event for piece in pieces for event in events.feed(piece)] == [b"1\n2", b"3"]


@pytest.mark.parametrize("line", [b"data: x", b"data:\n"])
def test_an_event_without_end_is_refused(line: bytes) -> None:
    events = EventReader()
    body = line * (2**21 // len(line))
    with pytest.raises(ProtocolError, match="an event of more than 1,048,576 bytes"):
        events.feed(body)
