"""Recording an engine of this process: through `LLM` and through `nanoserve generate`, words only where asked for."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from nanoserve.entrypoints.app.traces.reader import TraceFile, walk
from nanoserve.entrypoints.app.traces.writer import Recording, TraceWriter
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import Turn
from tests.inside import inside
from tests.unit.entrypoints.recorded_run import FORMAT
from tests.unit.entrypoints.scripted_world import LetterTokenizer, interrupt_in_turn, scripted_assembly

OpenLLM = Callable[..., LLM]
PROMPT = "hush, a secret"
PARAMS = SamplingParams(max_tokens=9)


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(assembly: Assembly, *arguments: str) -> int:
        monkeypatch.setattr("nanoserve.entrypoints.cli.generation.assemble", lambda _settings: assembly)
        try:
            return run_command(["generate", *arguments])
        except SystemExit as ended:
            return int(ended.code or 0)

    return run


def turns(path: pathlib.Path) -> list[Turn]:
    return [each for each in TraceFile(str(path), FORMAT) if isinstance(each, Turn)]


@pytest.mark.parametrize("name", ["run.trace", "run.trace.gz"])
def test_generate_writes_the_run_and_no_word_of_it(
    generate: Callable[..., int], tmp_path: pathlib.Path, name: str
) -> None:
    path = tmp_path / name
    assert generate(scripted_assembly(), PROMPT, "--max-tokens", "9", "--n", "2", "--trace", str(path)) == 0
    trace = TraceFile(str(path), FORMAT)
    *_, (_, books) = walk(trace)
    assert (books.finished, books.generated_tokens) == ({"length": 2}, 18)
    assert not trace.header.has_words
    assert not trace.cut_short
    assert not any(turn.words for turn in turns(path))


def test_words_are_written_where_they_are_asked_for(
    generate: Callable[..., int], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "run.trace"
    done = generate(
        scripted_assembly(), PROMPT, "--max-tokens", "9", "--seed", "7", "--trace", str(path), "--trace-words"
    )
    assert done == 0
    assert TraceFile(str(path), FORMAT).header.has_words
    words = [each for turn in turns(path) for each in turn.words]
    texts = {token: text for each in words for token, text in each.texts.items()}
    told = [token for each in words for token in each.token_ids]
    assert "".join(texts[token] for token in told[: len(PROMPT)]) == PROMPT
    assert len(told) == len(LetterTokenizer().encode(PROMPT)) + 9


def test_an_interrupted_run_leaves_its_trace(
    generate: Callable[..., int], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, assembly = tmp_path / "run.trace.gz", scripted_assembly()
    interrupt_in_turn(assembly.engine, 4, monkeypatch)
    assert generate(assembly, PROMPT, "--max-tokens", "60", "--trace", str(path)) == 130
    *_, (_, books) = walk(TraceFile(str(path), FORMAT))
    assert books.finished == {"abort": 1}


def test_nothing_is_recorded_unless_asked(generate: Callable[..., int]) -> None:
    assembly = scripted_assembly()
    assert generate(assembly, PROMPT, "--max-tokens", "9") == 0
    assert inside(assembly.engine).scheduler.cache.journal is None


def test_an_unwritable_path_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def assemble(_settings: EngineSettings) -> Assembly:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("nanoserve.entrypoints.cli.generation.assemble", assemble)
    assert run_command(["generate", PROMPT, "--trace", str(tmp_path / "nowhere" / "run.trace")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trace: cannot write" in line
    assert "No such file or directory" in line


def test_an_llm_records_until_it_is_shut_down(open_llm: OpenLLM, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.trace"
    with open_llm(trace=path) as llm:
        llm.generate(PROMPT, PARAMS)
        llm.generate([PROMPT, "abc"], PARAMS)
        *_, (_, books) = walk(TraceFile(str(path), FORMAT))
        assert books.finished == {"length": 3}
    llm.shutdown()
    assert path.read_bytes().endswith(b"\n")


def test_an_llm_refuses_a_path_that_cannot_be_written(open_llm: OpenLLM, tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadValueError, match="cannot write"):
        open_llm(trace=tmp_path)


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path: pathlib.Path) -> None:
    assembly = scripted_assembly()
    engine = assembly.engine
    header = trace_header(EngineSettings(), assembly, has_words=False)
    writer = TraceWriter(str(tmp_path / "run.trace"), header, FORMAT)
    recording = Recording(engine, writer)

    def fail(_records: object) -> None:
        raise OSError(28, "No space left on device")

    writer.write = fail  # type: ignore[method-assign, assignment]
    recording.write_turns()
    assert inside(engine).scheduler.cache.journal is None
    recording.write_turns()
    recording.close()


@pytest.mark.parametrize(("model", "name"), [(None, "built-in"), ("org/model", "org/model")])
def test_the_header_names_the_model(model: str | None, name: str) -> None:
    header = trace_header(EngineSettings(model=model), scripted_assembly(), has_words=False)
    assert header.model == name


def test_the_header_has_only_the_last_part_of_a_folder(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "somebody" / "model"
    folder.mkdir(parents=True)
    settings = EngineSettings(model=str(folder))
    header = trace_header(settings, scripted_assembly(num_blocks=77), has_words=True)
    assert (header.model, header.num_blocks, header.block_size) == ("model", 77, 4)
    assert header.has_words
