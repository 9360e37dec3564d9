"""Prompts from the argument, standard input and files, and what is said of bad ones."""

from __future__ import annotations

import io
import pathlib
import sys

import pytest

from nanoserve.entrypoints.cli.generation import make_jobs, run_generation
from nanoserve.entrypoints.cli.prompt_sources import Source, read_sources
from nanoserve.entrypoints.compose.config.command_settings import GenerateSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.sampling import SamplingParams
from tests.unit.entrypoints.scripted_world import scripted_assembly


def pipe_in(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.mark.parametrize("argument", [None, "-"])
def test_standard_input_is_one_prompt_without_its_last_line_break(
    argument: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe_in("two\nlinés\n".encode(), monkeypatch)
    assert [each.prompt for each in read_sources(argument, None)] == ["two\nlinés"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input is empty"),
        (b"\n", "standard input is empty"),
        (b"ab\xff", "standard input is not UTF-8 text: byte 0xff at offset 2"),
    ],
)
def test_bad_standard_input_is_explained(
    content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe_in(content, monkeypatch)
    with pytest.raises(BadValueError, match=message):
        read_sources(None, None)


def test_an_argument_of_other_bytes_than_text_is_explained() -> None:
    with pytest.raises(BadValueError, match="PROMPT: the argument is not UTF-8 text: byte 0xff at offset 1"):
        read_sources("a\udcff", None)


def test_a_dash_for_a_file_is_standard_input_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(b"one\ntwo\n", monkeypatch)
    assert [each.prompt for each in read_sources(None, "-")] == ["one", "two"]


def test_a_text_file_is_one_prompt_per_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  two\n")
    sources = read_sources(None, str(path))
    assert [(each.id, each.prompt) for each in sources] == [(0, "one"), (1, "  two")]
    assert sources[1].place == f"{path} line 3"


def test_json_lines_carry_ids_messages_and_sampling(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        '{"prompt": "a", "id": "first", "temperature": 0, "priority": -1}',
        '{"prompt_token_ids": [1, 2]}',
        '{"messages": [{"role": "user", "content": "hi"}]}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    first, second, third = read_sources(None, str(path))
    assert (first.id, first.prompt, first.sampling, first.priority) == ("first", "a", {"temperature": 0}, -1)
    assert (second.id, second.prompt) == (1, [1, 2])
    assert third.messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ("{}", "line 2 needs one of `prompt`, `prompt_token_ids` and `messages`"),
        ('{"prompt": "a", "messages": []}', "line 2 needs one of"),
        ('{"prompt": "a", "temprature": 1}', "line 2 has an unknown field 'temprature'"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"prompt": "a", "priority": "high"}', "line 2: priority must be an integer, got 'high'"),
        ('{"prompt": "a", "seed": 1' + "0" * 5000 + "}", "line 2 is not JSON"),
        ('{"prompt": "a", "id": NaN}', "line 2: id must be valid Unicode without NaN"),
        ('{"prompt": "a", "id": {"b": 1e400}}', "line 2: id must be valid Unicode without NaN"),
        ('{"prompt": "a", "id": "\\ud800"}', "line 2: id must be valid Unicode without NaN"),
    ],
)
def test_a_bad_line_is_named(tmp_path: pathlib.Path, line: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(BadValueError) as caught:
        read_sources(None, str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "cannot read"),
        ("empty.txt", b"", "holds no prompt"),
        ("blank.jsonl", b"\n \n", "holds no prompt"),
        ("binary.txt", b"\x80", "is not UTF-8"),
    ],
)
def test_an_unusable_file_is_explained(
    tmp_path: pathlib.Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadValueError, match=message):
        read_sources(None, str(path))


def test_a_prompt_and_a_file_are_too_much(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadValueError, match="not both"):
        read_sources("a", str(tmp_path))
    with pytest.raises(BadValueError, match="PROMPT: is empty"):
        read_sources("", None)


@pytest.mark.parametrize(
    ("source", "settings", "prompt"),
    [
        (Source(prompt="hi"), GenerateSettings(), "hi"),
        (Source(prompt="hi"), GenerateSettings(chat=True), "user.hi."),
        (Source(prompt="hi"), GenerateSettings(system="be brief"), "system.be brief.user.hi."),
        (Source(messages=[{"role": "user", "content": "hi"}]), GenerateSettings(), "user.hi."),
        (
            Source(messages=[{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]),
            GenerateSettings(system="other"),
            "system.own.user.hi.",
        ),
    ],
)
def test_chat_and_system_wrap_plain_prompts_only(
    source: Source, settings: GenerateSettings, prompt: str
) -> None:
    (job,) = make_jobs([source], Session(scripted_assembly()), settings, SamplingParams())
    assert job.prompt.text == prompt


def test_a_line_overrides_the_commands_sampling() -> None:
    sources = [Source(prompt="a", sampling={"max_tokens": 3, "stop": "x"}), Source(prompt="b")]
    base = SamplingParams(temperature=0.5, max_tokens=9)
    first, second = make_jobs(sources, Session(scripted_assembly()), GenerateSettings(), base)
    assert first.request.sampling == SamplingParams(temperature=0.5, max_tokens=3, stop="x")
    assert second.request.sampling == base


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            Source(place="f line 3", prompt="a", sampling={"top_p": 2}),
            "top_p: must be in .* got 2.* .from f line 3",
        ),
        (
            Source(place="f line 3", prompt="a", sampling={"n": "x"}),
            "n: must be an integer, got 'x' .from f line 3",
        ),
        (Source(place="f line 3", prompt=5), "f line 3: prompt: must be text"),
        (Source(place="f line 3", messages="hi"), "f line 3: messages: must be a list"),
    ],
)
def test_a_bad_prompt_names_its_place(source: Source, message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        make_jobs([source], Session(scripted_assembly()), GenerateSettings(), SamplingParams())


def test_lines_of_json_may_say_what_each_answer_must_be(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(
        '{"prompt": "a", "structured_outputs": {"regex": "[0-9]+"}}\n'
        '{"prompt": "b", "response_format": {"type": "json_object"}}\n'
        '{"prompt": "c"}\n'
    )
    sources = read_sources(None, str(file))
    own = [Constraint("regex", "[0-9]+"), Constraint("json_object", ""), None]
    assert [each.constraint for each in sources] == own
    common = Constraint("choice", '["x"]')
    session = Session(scripted_assembly())
    jobs = make_jobs(sources, session, GenerateSettings(), SamplingParams(max_tokens=3), common)
    assert [each.request.constraint for each in jobs] == [*own[:2], common]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ('"structured_outputs": {"xml": "a"}', "line 2: structured_outputs.xml: is none of json"),
        ('"structured_outputs": {"regex": "(a"}', "line 2: regex: .*unclosed"),
        (
            '"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}',
            "line 2: structured_outputs: cannot be combined with",
        ),
    ],
)
def test_what_an_answer_cannot_be_is_refused_before_a_model_is_loaded(
    asked: str, message: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", ' + asked + "}\n")
    configuration = Configuration({})  # nothing of it is looked at
    with pytest.raises(BadValueError, match=message):
        run_generation(configuration, read_sources(None, str(file)))
