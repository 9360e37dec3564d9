"""Batches against a server that answers, refuses, is full, fails and hangs up: each line is answered once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from nanoserve.entrypoints.app.batch_lines import AnswersFile
from nanoserve.entrypoints.client.batch import Tally, read_lines, run_batch
from nanoserve.entrypoints.client.server import read_address
from nanoserve.entrypoints.compose.interrupts import interrupt
from nanoserve.ports.errors import BadValueError
from tests.http_thread import Answering, answering

Answer = Callable[[dict[str, Any], int], int | dict[str, Any]]
"""The status for a body that has been sent so many times before, or what is said with 200; 0 hangs up."""


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server's address, and the texts that were sent to it, in order."""
    sent: list[str] = []

    class Handler(Answering):
        def reply(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            before = sent.count(body["input"])
            sent.append(body["input"])
            status = answer(body, before)
            if not status:
                self.close_connection = True
                return
            more = status if isinstance(status, dict) else {}
            status = 200 if isinstance(status, dict) else status
            said = json.dumps({"path": self.path, **body, **more}).encode()
            self.say(said, status, {"retry-after": "0", "x-request-id": "r-1"})

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, sent


def requests(folder: pathlib.Path, texts: list[str]) -> str:
    path = folder / "requests.jsonl"
    lines = [
        {"custom_id": f"c-{text}", "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
        for text in texts
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def run(file: str, output: pathlib.Path, url: str, **more: Any) -> Tally:
    return run_batch(file, str(output), read_address(url), **{"concurrency": 3, "priority": None, **more})


def answers(path: pathlib.Path) -> dict[str, Any]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {each["custom_id"]: each["response"] for each in found}
    assert len(by_id) == len(found), "a line is answered twice"
    return by_id


def test_each_line_is_answered_with_what_the_server_says(tmp_path: pathlib.Path) -> None:
    out, texts = tmp_path / "out", [str(number) for number in range(10)]
    with serving(lambda body, _: 400 if body["input"] == "3" else 200) as (url, sent):
        assert run(requests(tmp_path, texts), out, url, priority=7) == Tally(completed=9, failed=1)
        assert sorted(sent) == texts
        assert run(requests(tmp_path, [*texts, "new"]), out, url) == Tally(completed=1, before=10)
        assert sent[10:] == ["new"]
    found = answers(out)
    assert found["c-3"]["status_code"] == 400
    said = {"path": "/v1/embeddings", "input": "4", "priority": 7}
    assert found["c-4"] == {"status_code": 200, "request_id": "r-1", "body": said}


def test_a_server_that_is_full_away_or_failing_is_asked_again(tmp_path: pathlib.Path) -> None:
    story = {"full": [503, 429, 200], "away": [0, 0, 200], "failing": [500, 500, 500], "once": [500, 200]}
    with serving(lambda body, before: story[body["input"]][before]) as (url, sent):
        assert run(requests(tmp_path, list(story)), tmp_path / "out", url) == Tally(completed=3, failed=1)
        assert {text: sent.count(text) for text in story} == {text: len(each) for text, each in story.items()}
    statuses = {name: each["status_code"] for name, each in answers(tmp_path / "out").items()}
    assert statuses == {"c-full": 200, "c-away": 200, "c-failing": 500, "c-once": 200}


def test_an_answer_that_a_pause_has_cut_is_asked_for_again(tmp_path: pathlib.Path) -> None:
    cut: dict[str, dict[str, Any]] = {
        "chat": {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]},
        "response": {"status": "cancelled"},
        "message": {"stop_reason": "pause_turn"},
    }
    whole: dict[str, dict[str, Any]] = {
        "chat": {"choices": [{"finish_reason": "stop"}]},
        "response": {"status": "completed"},
        "message": {"stop_reason": "end_turn"},
    }
    with serving(lambda body, before: (whole if before else cut)[body["input"]]) as (url, sent):
        assert run(requests(tmp_path, list(cut)), tmp_path / "out", url) == Tally(completed=3)
        assert sorted(sent) == sorted([*cut, *cut])
    found = answers(tmp_path / "out")
    assert all(found[f"c-{name}"]["body"].items() >= said.items() for name, said in whole.items())


def test_half_a_line_that_a_kill_has_left_is_answered_again(tmp_path: pathlib.Path) -> None:
    out, file = tmp_path / "out", requests(tmp_path, ["a", "b"])
    with serving(lambda *_: 200) as (url, sent):
        run(file, out, url, concurrency=1)
        whole = out.read_bytes()
        out.write_bytes(whole[:-9])
        assert run(file, out, url) == Tally(completed=1, before=1)
        assert sent == ["a", "b", "b"]
    assert set(answers(out)) == {"c-a", "c-b"}


def test_two_runs_do_not_write_one_file(tmp_path: pathlib.Path) -> None:
    file = requests(tmp_path, ["a"])
    with (tmp_path / "out").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadValueError, match=r"output: .* is being written by another run"):
            run(file, tmp_path / "out", "http://127.0.0.1:1")
    with pytest.raises(BadValueError, match="output: must be another file"):
        run(file, pathlib.Path(file), "http://127.0.0.1:1")
    (tmp_path / "else").write_text("words\n")
    with pytest.raises(BadValueError, match="is not a file of a batch's answers"):
        run(file, tmp_path / "else", "http://127.0.0.1:1")
    with pytest.raises(BadValueError, match="output: cannot write"):
        run(file, tmp_path / "no" / "out", "http://127.0.0.1:1")


def test_a_full_disk_ends_the_run_in_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = requests(tmp_path, [str(number) for number in range(8)])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serving(lambda *_: 200) as (url, _):
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left") as caught:
                run(file, tmp_path / "out", url)
        assert caught.value.filename == str(tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert run(file, tmp_path / "out", url) == Tally(completed=8)


def test_an_interrupt_ends_all_that_is_under_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the loop happens to be, here in a line's own task; what is being written is written."""
    file, write = requests(tmp_path, [str(number) for number in range(8)]), AnswersFile.write

    async def interrupted(answers: AnswersFile, entry: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await write(answers, entry)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with serving(lambda *_: 200) as (url, _):
            with monkeypatch.context() as hit:
                hit.setattr(AnswersFile, "write", interrupted)
                with pytest.raises(KeyboardInterrupt) as caught:
                    run(file, tmp_path / "out", url, concurrency=1)
            assert isinstance(caught.value.__context__, asyncio.CancelledError)
            assert signal.getsignal(signal.SIGINT) is interrupt
            assert run(file, tmp_path / "out", url).before <= 1
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("was_there", [False, True])
def test_a_run_without_an_answer_leaves_no_file_that_was_not_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, was_there: bool
) -> None:
    file, out = requests(tmp_path, ["a"]), tmp_path / "out"
    if was_there:
        out.touch()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nanoserve.entrypoints.client.batch.send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(file, out, "http://127.0.0.1:1")
    assert out.exists() is was_there


def test_a_file_that_the_run_before_has_just_removed_is_not_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out, lock = requests(tmp_path, ["a"]), tmp_path / "out", fcntl.flock

    def late(*arguments: Any) -> None:
        out.unlink()
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    monkeypatch.setattr("nanoserve.entrypoints.client.batch.send", lambda *_, **__: asyncio.sleep(0))
    with pytest.raises(BadValueError, match="is being written by another run"):
        run(file, out, "http://127.0.0.1:1")


GOOD = {"custom_id": "a", "url": "/v1/embeddings", "body": {}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no request"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 needs `custom_id`"),
        (json.dumps(GOOD) + "\n\n" + json.dumps({**GOOD, "body": 1}), "line 3 needs `custom_id`"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD), "line 2 repeats the custom_id 'a'"),
        (json.dumps({**GOOD, "method": "GET"}), "line 1 can ask only for POST"),
        (json.dumps({**GOOD, "url": "http://else/v1/"}), "line 1 can ask only for POST"),
        (json.dumps({**GOOD, "url": "/v1/a b\r\nhost: else"}), "line 1 can ask only for POST"),
        (json.dumps({**GOOD, "body": {"stream": True}}), "line 1 must not ask for `stream`"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused_before_anything_is_sent(
    tmp_path: pathlib.Path, text: str, complaint: str
) -> None:
    path = tmp_path / "requests"
    path.write_text(text)
    with pytest.raises(BadValueError) as caught:
        read_lines(path)
    assert complaint in str(caught.value)
    with pytest.raises(BadValueError, match="cannot read"):
        read_lines(tmp_path / "missing")
