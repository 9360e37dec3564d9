"""`nanoserve generate` in this process, over an engine without torch: output, order, statistics, and how errors end."""

from __future__ import annotations

import io
import json
import pathlib
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from nanoserve.entrypoints.cli.main import main, run_command
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.errors import ModelLoadError, StepFailedError
from nanoserve.ports.sampling import SamplingDefaults
from tests.unit.entrypoints.scripted_world import alone, interrupt_in_turn, scripted_assembly


@attrs.frozen
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_over(assembly: Assembly, *arguments: str) -> Ended:
        monkeypatch.setattr("nanoserve.entrypoints.cli.generation.assemble", lambda _settings: assembly)
        try:
            code = run_command(["generate", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ended(code, *capsys.readouterr())

    return run_over


def test_one_answer_is_streamed_in_pieces(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []
    monkeypatch.setattr(
        "nanoserve.entrypoints.cli.generation.click.echo", lambda text="\n", nl=True: pieces.append(text)
    )
    assert run(scripted_assembly(), "hello", "--seed", "7", "--max-tokens", "12").code == 0
    assert "".join(pieces) == alone("hello") + "\n"
    assert len(pieces) > 10


@pytest.mark.parametrize("flags", [("--stream",), ("--no-stream",)])
def test_streamed_or_not_the_text_is_the_same(run: Run, flags: tuple[str, ...]) -> None:
    ended = run(scripted_assembly(), "hello", "--seed", "7", "--max-tokens", "12", *flags)
    assert (ended.code, ended.out, ended.err) == (0, alone("hello") + "\n", "")


def test_n_answers_are_printed_one_after_the_other(run: Run) -> None:
    ended = run(scripted_assembly(), "hello", "--seed", "7", "--max-tokens", "12", "--n", "3")
    assert ended.out == "".join(alone("hello", index=i) + "\n" for i in range(3))


def test_answers_are_written_in_order_as_soon_as_all_before_them_are(
    run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [30, 5, 10, 40, 1]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "go", "max_tokens": each}) for each in lengths))
    assembly = scripted_assembly()
    turns = count_turns(assembly.engine, monkeypatch)
    written: list[int] = []
    monkeypatch.setattr(
        "nanoserve.entrypoints.cli.generation.click.echo", lambda _text="": written.append(len(turns))
    )
    assert run(assembly, "--file", str(path), "--json").code == 0
    assert written == [30, 30, 30, 40, 40]


def count_turns(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    turns: list[int] = []
    real = engine.turn

    def turn() -> Any:
        turns.append(len(turns))
        return real()

    monkeypatch.setattr(engine, "turn", turn)
    return turns


def test_a_text_file_is_answered_line_by_line_in_chat(run: Run, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    ended = run(
        scripted_assembly(), "--file", str(path), "--system", "be", "--seed", "7", "--max-tokens", "12"
    )
    assert ended.out.splitlines() == [alone("system.be.user.one."), alone("system.be.user.two.")]


def test_json_without_logprobs_or_several_answers(run: Run) -> None:
    ended = run(scripted_assembly(), "hello", "--seed", "7", "--max-tokens", "12", "--json")
    answer = json.loads(ended.out)
    assert set(answer) == {"id", "text", "token_ids", "finish_reason", "stop_reason", "logprobs", "usage"}
    assert answer["logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 12,
        "total_tokens": 17,
        "cached_tokens": 0,
    }


def test_json_reports_prompt_logprobs(run: Run) -> None:
    ended = run(scripted_assembly(), "abc", "--prompt-logprobs", "0", "--max-tokens", "1", "--json")
    prompt = json.loads(ended.out)["prompt_logprobs"]
    assert prompt[0] is None
    assert [each[0]["token_id"] for each in prompt[1:]] == [1, 2]


def test_statistics_count_what_happened(run: Run, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["a shared beginning that is long"] * 8))
    ended = run(
        scripted_assembly(num_blocks=32), "--file", str(path), "--max-tokens", "60", "--stats", "--json"
    )
    numbers = dict(re.findall(r"([a-z][a-z/ ]+) ([0-9.]+)", ended.err))
    assert (numbers["prompts"], numbers["prompt tokens"], numbers["generated tokens"]) == ("8", "248", "480")
    assert int(numbers["preemptions"]) > 0
    answers = [json.loads(line) for line in ended.out.splitlines()]
    hits = sum(each["usage"]["cached_tokens"] for each in answers)
    assert int(numbers["prefix hits"]) == hits > 0


def test_the_models_defaults_give_way_to_flags(run: Run) -> None:
    assembly = scripted_assembly(
        defaults=SamplingDefaults(values={"max_tokens": 3, "seed": 7}, origin="its file")
    )
    assert run(assembly, "hello").out == alone("hello", tokens=3) + "\n"
    assert run(assembly, "hello", "--max-tokens", "5").out == alone("hello", tokens=5) + "\n"
    bad = scripted_assembly(defaults=SamplingDefaults(values={"top_p": 9.0}, origin="its file"))
    assert "top_p: must be in [0, 1], got 9.0 (from its file)" in run(bad, "hello").err


def test_ctrl_c_in_a_batch_keeps_what_there_is(
    run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "go", "seed": 7, "max_tokens": each} for each in (5, 50, 50)]
    path.write_text("\n".join(map(json.dumps, lines)))
    assembly = scripted_assembly(max_num_seqs=2)
    interrupt_in_turn(assembly.engine, 10, monkeypatch)
    ended = run(assembly, "--file", str(path))
    assert (ended.code, ended.err) == (130, "nanoserve: interrupted\n")
    whole = alone("go", tokens=50)
    answers = ended.out.splitlines()
    assert answers[0] == whole[:5]
    assert all(whole.startswith(each) and 0 < len(each) < 12 for each in answers[1:])
    assert len(answers) == 3


def test_a_closed_pipe_ends_quietly_and_stops_the_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.TextIOWrapper):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assembly = scripted_assembly()
    with pathlib.Path("/dev/null").open("wb") as sink:
        monkeypatch.setattr(sys, "stdout", Closed(sink))
        ended = run(assembly, "hello", "--max-tokens", "50")
        monkeypatch.undo()
    assert (ended.code, ended.err) == (141, "")
    assert not assembly.engine.has_work


@pytest.mark.parametrize("flags", [(), ("--json",), ("--stats",)])
def test_a_refused_line_is_named_by_its_place(
    run: Run, tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("fine\n\n" + "x" * 200 + "\n")
    ended = run(scripted_assembly(), "--file", str(path), *flags)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith(f"nanoserve: {path} line 3: the prompt has 200 tokens")
    assert ended.err.count("\n") == 1


def test_a_failed_step_is_an_error_after_the_other_answers(run: Run, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "go", "seed": 7, "max_tokens": 9}\n{"prompt": "no"}\n')
    failing = scripted_assembly(fail_at={3: StepFailedError("on fire", guilty_rows=(1,))})
    ended = run(failing, "--file", str(path))
    assert ended.code == 1
    assert ended.out.splitlines()[0] == alone("go", tokens=9)
    assert "1 of 2 requests failed" in ended.err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("two\nlines"), "internal error: RuntimeError: two lines (--debug shows where)"),
        (ModelLoadError("no weights"), "no weights"),
    ],
)
def test_whatever_goes_wrong_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(_settings: EngineSettings) -> Assembly:
        raise error

    monkeypatch.setattr("nanoserve.entrypoints.cli.generation.assemble", explode)
    assert run_command(["generate", "x"]) == 1
    assert capsys.readouterr() == ("", f"nanoserve: {line}\n")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (b"{bad", "json_schema: must be JSON: Expecting property name"),
        (b"", "json_schema: must be JSON: Expecting value"),
        (b"[1]", "json_schema: must be an object or a boolean"),
        (b'{"type": "text"}', "json_schema: Invalid type: text"),
        (b'{"\xff": 1}', "is not UTF-8 text: byte 0xff at offset 2"),
    ],
)
def test_a_broken_schema_is_named_by_its_file(
    run: Run, tmp_path: pathlib.Path, schema: bytes, message: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(schema)
    ended = run(scripted_assembly(), "hello", "--json-schema", str(path))
    assert (ended.code, ended.out) == (2, "")
    assert (str(path) in ended.err, message in ended.err, ended.err.count("\n")) == (True, True, 1)


def test_a_full_disk_is_named_by_the_file_of_the_step_log(run: Run) -> None:
    ended = run(scripted_assembly(), "hello", "--trace", "/dev/full")
    assert (ended.code, ended.out, ended.err) == (1, "", "nanoserve: /dev/full: No space left on device\n")


def test_an_unknown_variable_is_warned_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOSERVE_TEMPRATURE", "0")
    ended = run(scripted_assembly(), "x", "--max-tokens", "1", "--log-json")
    assert json.loads(ended.err)["name"] == "NANOSERVE_TEMPRATURE"


def test_ctrl_c_while_the_program_shuts_down_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_arguments: object) -> int:
        raise SystemExit(130)

    module = sys.modules[main.__module__]  # the package has a function of the module's name
    monkeypatch.setattr(module, "run_command", interrupted)
    monkeypatch.setattr(module, "silence_warnings", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
