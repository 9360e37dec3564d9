"""`nanoserve serve` as those see it who watch it, and what `--trace` leaves behind."""

from __future__ import annotations

import gzip
import pathlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.cli.main import run_command
from tests.process.server_process import ServerProcess, server_process
from tests.unit.adapters.engine_process.client.log_reader import FORMAT, log_of
from tests.unit.entrypoints.server.watch.live_stream import LiveStream, live

SECRET = "xylophone"
BODY: dict[str, Any] = {
    "model": "built-in",
    "prompt": f"The {SECRET} was",
    "temperature": 0,
    "ignore_eos": True,
}


def complete(server: ServerProcess, max_tokens: int) -> Any:
    with server.client() as client:
        answer = client.post("/v1/completions", json=BODY | {"max_tokens": max_tokens})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("watched")
    with server_process(folder, "--trace", str(folder / "log.gz"), "--trace-limit", "64M") as started:
        yield started


def test_a_server_can_be_watched_from_its_first_second_to_its_last(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server.wait_until_ready()
    with server.client() as client, live(client) as stream:
        stream.until(lambda name, _: name == "trace")
        text = complete(server, 40)
        stream.until(lambda *_: stream.reader.state.finished == {"length": 1})
        [engine] = server.children()
        engine.kill()
        stream.until(lambda name, data: name == "status" and data["status"] == "restarting")
        stream.until(lambda *_: len(stream.reader.snapshots) == 2)
        complete(server, 30)
        stream.until(lambda *_: stream.reader.state.generated_tokens == 30)
        assert stream.reader.statuses == ["restarting", "ready"]
        stream.until(lambda name, data: name == "status" and data["generated_tokens"] == 70)
        assert stream.of("status")[-1]["restarts"] == 1
        _leave_while_one_is_served(server, stream)
    file = server.out.parent / "log.gz"
    reader = log_of(file)
    assert reader.statuses == ["restarting", "ready", "stopped"]
    assert len(reader.snapshots) == 2
    said = gzip.decompress(file.read_bytes()).decode()
    for word in {SECRET, *(each for each in text.split() if each.isalpha() and len(each) > 4)}:
        assert word not in said
        assert word not in str(stream.events)


def _leave_while_one_is_served(server: ServerProcess, stream: LiveStream) -> None:
    """A request is finished, the viewer is told that the server leaves, and does not keep it."""
    serving = threading.Thread(target=complete, args=(server, 40))
    with server.held_engine():
        serving.start()
        stream.until(lambda name, data: name == "status" and data["waiting"])
        server.signal(signal.SIGTERM)
        stream.until(lambda name, data: name == "status" and data["draining"] and data["waiting"])
    stream.rest()
    serving.join()
    assert stream.of("status")[-1]["status"] == "stopped"
    assert stream.reader.state.finished == {"length": 2}
    assert server.wait() == 0
    assert "unfinished" not in server.err.read_text()


def test_words_are_written_where_they_are_asked_for_and_shown_to_no_holder_of_another_key(
    tmp_path: pathlib.Path,
) -> None:
    log = tmp_path / "log"
    keys = ("--api-key", "one-key", "--api-key", "other-key")
    with server_process(tmp_path, *keys, "--trace", str(log), "--trace-words") as server:
        server.wait_until_ready()
        with (
            server.client("one-key") as asking,
            server.client("other-key") as watching,
            live(watching) as stream,
        ):
            stream.until(lambda name, _: name == "trace")
            answer = asking.post("/v1/completions", json=BODY | {"max_tokens": 5})
            assert answer.status_code == 200, answer.text
            stream.until(lambda *_: stream.reader.state.finished == {"length": 1})
        assert [turn.words for turn in stream.reader.turns if turn.words] == []
        assert [header["has_words"] for header in stream.of("header")] == [False]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    words = [each for turn in log_of(log).turns for each in turn.words]
    texts = {token: text for each in words for token, text in each.texts.items()}
    assert SECRET in "".join(texts[token] for each in words for token in each.token_ids)
    assert TraceFile(str(log), FORMAT).header.has_words


def test_a_path_that_cannot_be_written_is_one_clear_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["serve", "--port", "0", "--trace", str(tmp_path / "no" / "log")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "trace: cannot write" in shown.err
