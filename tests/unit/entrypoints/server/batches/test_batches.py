"""Batches over the scripted engine: what is answered, refused, cancelled, expired, and how they go on in another server."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.sequence import Sequence
from nanoserve.entrypoints.server.batches import running
from nanoserve.ports.request import DEFERRED_CLASS
from tests.patience import wait_until
from tests.unit.entrypoints.scripted_world import alone
from tests.unit.entrypoints.server.batches.batch_world import (
    batch_world,
    batches_of,
    content,
    create,
    ended,
    file_of,
    lines,
    refusal,
    state,
    upload,
)
from tests.unit.entrypoints.server.http.app_world import AppWorld

NAMES = [f"{first}{second}" for first in "abcd" for second in "efgh"]
SOME_TURNS = 50
"""Turns of the engine: enough for some lines of four tokens, and too few for one of hundreds."""


def prompts(world: AppWorld) -> list[str]:
    return [world.engine.prompt_text(number) for number in range(len(world.engine.requests))]


def test_a_batch_is_answered_as_its_lines_would_be(tmp_path: pathlib.Path) -> None:
    chat = {"custom_id": "chat", "url": "/v1/chat/completions"}
    with batch_world(tmp_path) as world, world.client() as client:
        batch = create(client, file_of(client, lines(*NAMES, seed=7)), metadata={"for": "a test"})
        assert (batch["object"], batch["status"]) == ("batch", "validating")
        done = ended(client, batch)
        assert (done["status"], done["metadata"], done["error_file_id"]) == (
            "completed",
            {"for": "a test"},
            None,
        )
        assert done["request_counts"] == {"total": 16, "completed": 16, "failed": 0}
        assert done["expires_at"] - done["created_at"] == 86400
        assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
        made = client.get(f"/v1/files/{done['output_file_id']}").json()
        assert (made["purpose"], made["bytes"] > 0) == ("batch_output", True)
        answers = content(client, done["output_file_id"])
        assert answers.keys() == {*NAMES}
        for name, entry in answers.items():
            assert (entry["error"], entry["response"]["status_code"]) == (None, 200)
            assert entry["response"]["request_id"].startswith("req_")
            assert entry["response"]["body"]["choices"][0]["text"] == alone(name, tokens=4, seed=7)
        assert {each.request_class for each in world.engine.requests} == {DEFERRED_CLASS}
        assert client.get("/v1/batches").json()["data"] == [done]
        page = client.get("/metrics").text
        assert 'nanoserve:batch_lines_total{engine="0",model_name="scripted",result="completed"} 16.0' in page
        messages = [{"role": "user", "content": "a"}]
        line = json.dumps({**chat, "body": {"messages": messages, "max_tokens": 4}}).encode()
        other = ended(client, create(client, file_of(client, line), chat["url"]))
        (entry,) = content(client, other["output_file_id"]).values()
        assert entry["response"]["body"]["object"] == "chat.completion"
        body = {"store": True, "input": "a", "max_output_tokens": 16}
        line = json.dumps({"custom_id": "r", "url": "/v1/responses", "body": body}).encode()
        other = ended(client, create(client, file_of(client, line), "/v1/responses"))
        (entry,) = content(client, other["output_file_id"]).values()
        name = entry["response"]["body"]["id"]
        assert refusal(client.get(f"/v1/responses/{name}"), 404)[0] == "response_not_found"


def test_lines_that_are_refused_are_in_a_file_of_their_own(tmp_path: pathlib.Path) -> None:
    wrong = json.loads(lines("bb", max_tokens=-1))
    with batch_world(tmp_path) as world, world.client() as client:
        raw = lines("aa") + b"\n\n" + json.dumps(wrong).encode() + b"\n"
        done = ended(client, create(client, file_of(client, raw)))
        assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        assert content(client, done["output_file_id"]).keys() == {"aa"}
        (entry,) = content(client, done["error_file_id"]).values()
        assert (entry["error"], entry["response"]["status_code"]) == (None, 400)
        assert entry["response"]["body"]["error"]["param"] == "max_tokens"


def test_a_file_of_wrong_lines_fails_with_all_that_is_wrong(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_LINES", 4)
    with batch_world(tmp_path) as world, world.client() as client:
        raw = lines("aa", "aa") + b"\n{\n" + lines("bb", url="/v1/embeddings")
        done = ended(client, create(client, file_of(client, raw)))
        assert (done["status"], done["output_file_id"]) == ("failed", None)
        assert [(each["line"], each["code"]) for each in done["errors"]["data"]] == [
            (number, "invalid_line") for number in (2, 3, 4)
        ]
        assert done["request_counts"]["total"] == 4
        assert done["errors"]["data"][0]["message"] == "line 2 repeats the custom_id 'aa'"
        done = ended(client, create(client, file_of(client, b"\n\n")))
        assert [each["message"] for each in done["errors"]["data"]] == ["holds no request"]
        done = ended(client, create(client, file_of(client, lines(*NAMES[:5]))))
        assert [each["code"] for each in done["errors"]["data"]] == ["too_many_lines"]
        assert not world.engine.requests


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"b" * 65: "x"}}, "metadata.b"),
        ({"metadata": {"c": "x" * 513}}, "metadata.c"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"endpoint": None}, "endpoint"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_at_once(
    tmp_path: pathlib.Path, change: dict[str, Any], param: str
) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        body = {"input_file_id": file_of(client, lines("a")), "endpoint": "/v1/completions"}
        answer = client.post("/v1/batches", json={**body, "completion_window": "24h", **change})
        found = refusal(answer, 400)[1]
        assert found is not None
        assert found.startswith(param)
        assert client.get("/v1/batches").json()["data"] == []


def test_lines_in_flight_are_bounded_and_batches_take_turns(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        table = world.engine.engine.scheduler.table
        world.call(lambda: world.engine.allow(0))
        first = create(client, file_of(client, lines(*NAMES[:6])))
        world.wait_until(lambda: len(world.engine.requests) == 2)
        second = create(client, file_of(client, lines(*NAMES[6:12])))
        # A line of each batch waits for a slot.
        world.wait_until(lambda: len(batches_of(world)._slots._waiters or ()) == 2)
        assert world.call(lambda: batches_of(world).living["in_progress"]) == 2
        assert world.call(lambda: batches_of(world).num_asked) == 2
        code, _, message = refusal(client.delete(f"/v1/files/{first['input_file_id']}"), 409)
        assert (code, first["id"] in message) == ("file_in_use", True)
        most: list[int] = []
        with pytest.MonkeyPatch.context() as patched:
            turn = world.engine.engine.turn

            def counted() -> Any:
                most.append(len(table.requests))
                return turn()

            patched.setattr(world.engine.engine, "turn", counted)
            world.call(lambda: world.engine.allow(None))
            assert ended(client, first)["status"] == ended(client, second)["status"] == "completed"
        assert max(most) == 2
        asked = prompts(world)
        places = [asked.index(name) for name in NAMES[:6]], [asked.index(name) for name in NAMES[6:12]]
        assert min(places[1]) < max(places[0]), "the second batch waits for the first"


def test_a_cancelled_batch_asks_nothing_more_and_keeps_what_it_has(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        world.call(lambda: world.engine.allow(SOME_TURNS))
        batch = create(client, file_of(client, lines(*NAMES[:2]) + b"\n" + lines(*NAMES[2:], max_tokens=400)))
        wait_until(lambda: state(client, batch)["request_counts"]["completed"] == 2)
        world.wait_until(lambda: len(world.engine.requests) == 4)
        assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
        done = ended(client, batch)
        assert done["status"] == "cancelled"
        assert done["cancelling_at"] <= done["cancelled_at"]
        assert done["request_counts"] == {"total": 16, "completed": 2, "failed": 0}
        assert content(client, done["output_file_id"]).keys() == {*NAMES[:2]}
        assert len(world.engine.requests) == 4
        world.call(lambda: world.engine.allow(None))
        world.wait_until(lambda: world.is_idle)
        assert refusal(client.post(f"/v1/batches/{batch['id']}/cancel"), 409)[0] == "batch_ended"


def test_what_is_not_answered_in_time_is_written_down_as_expired(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        time = [1_000_000.0]
        batches_of(world).now = lambda: time[0]
        world.call(lambda: world.engine.allow(SOME_TURNS))
        batch = create(
            client,
            file_of(client, lines(*NAMES[:2]) + b"\n" + lines(*NAMES[2:], max_tokens=400)),
            window="10m",
        )
        assert (batch["created_at"], batch["expires_at"]) == (1_000_000, 1_000_600)
        wait_until(lambda: state(client, batch)["request_counts"]["completed"] == 2)
        world.wait_until(lambda: len(world.engine.requests) == 4)
        time[0] += 599
        assert state(client, batch)["status"] == "in_progress"
        time[0] += 1
        done = ended(client, batch)
        assert (done["status"], done["expired_at"]) == ("expired", 1_000_600)
        assert done["request_counts"] == {"total": 16, "completed": 2, "failed": 14}
        assert content(client, done["output_file_id"]).keys() == {*NAMES[:2]}
        errors = content(client, done["error_file_id"])
        assert errors.keys() == {*NAMES[2:]}
        assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
        assert {each["response"] for each in errors.values()} == {None}
        assert len(world.engine.requests) == 4


def test_another_server_goes_on_and_asks_nothing_twice(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        world.call(lambda: world.engine.allow(SOME_TURNS))
        batch = create(client, file_of(client, lines(*NAMES[:3]) + b"\n" + lines(*NAMES[3:], max_tokens=300)))
        wait_until(lambda: state(client, batch)["request_counts"]["completed"] == 3)
        waiting = create(client, file_of(client, lines("a", "b")))
        cancelled = create(client, file_of(client, lines("a", "b")))
    mine = tmp_path / "anonymous"
    output = max(mine.glob("*-output.jsonl"), key=lambda file: file.stat().st_size)
    with output.open("ab") as torn:
        torn.write(b'{"id":"batch_req_1","custom_id":"' + NAMES[3].encode())
    record = mine / f"{cancelled['id']}.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "cancelling"}))
    with batch_world(tmp_path) as world, world.client() as client:
        done = ended(client, batch)
        assert done["status"] == ended(client, waiting)["status"] == "completed"
        assert ended(client, cancelled)["status"] == "cancelled"
        assert done["request_counts"] == {"total": 16, "completed": 16, "failed": 0}
        assert content(client, done["output_file_id"]).keys() == {*NAMES}
        assert sorted(prompts(world)) == sorted([*NAMES[3:], "a", "b"])
        assert client.get("/v1/batches").json()["data"] == [
            state(client, each) for each in (cancelled, waiting, batch)
        ]


def test_a_kill_while_the_files_are_made_changes_nothing(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        batch = ended(client, create(client, file_of(client, lines(*NAMES))))
        before = content(client, batch["output_file_id"])
    record = tmp_path / "anonymous" / f"{batch['id']}.json"
    unfinished = {"status": "finalizing", "output_file_id": None, "completed_at": None}
    record.write_text(json.dumps(batch | unfinished))
    (tmp_path / "anonymous" / f"{batch['output_file_id']}.json").unlink()
    with batch_world(tmp_path) as world, world.client() as client:
        again = ended(client, batch)
        assert (again["status"], again["output_file_id"]) == ("completed", batch["output_file_id"])
        assert content(client, again["output_file_id"]) == before
        assert not world.engine.requests


def test_a_batch_whose_key_is_gone_fails(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, "sk-old", "sk-one") as world, world.client("sk-old") as client:
        world.call(lambda: world.engine.allow(0))
        batch = create(client, file_of(client, lines(*NAMES)))
        wait_until(lambda: state(client, batch)["status"] == "in_progress")
    with batch_world(tmp_path, "sk-one") as world:
        world.wait_until(lambda: not batches_of(world).living)
        assert not world.engine.requests
    with batch_world(tmp_path, "sk-old") as world, world.client("sk-old") as client:
        found = state(client, batch)
        assert (found["status"], found["errors"]["data"][0]["code"]) == ("failed", "unknown_client")


def test_lines_whose_engine_dies_are_asked_again(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        world.call(lambda: world.engine.allow(0))
        batch = create(client, file_of(client, lines(*NAMES)))
        world.wait_until(lambda: len(world.engine.requests) == 8)
        world.call(world.engine.die)
        world.call(lambda: world.engine.allow(None))
        done = ended(client, batch)
        assert done["request_counts"] == {"total": 16, "completed": 16, "failed": 0}
        assert content(client, done["output_file_id"]).keys() == {*NAMES}


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": "c", "max_tokens": 40}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 40}),
        ("/v1/responses", {"input": "b", "max_output_tokens": 40}),
    ],
)
def test_lines_that_a_pause_aborts_are_asked_again(
    tmp_path: pathlib.Path, url: str, body: dict[str, Any]
) -> None:
    asked = {**body, "temperature": 0, "ignore_eos": True}
    line = json.dumps({"custom_id": "x", "url": url, "body": asked}).encode()
    with batch_world(tmp_path) as world, world.client() as client:
        world.call(lambda: world.engine.allow(6))
        batch = create(client, file_of(client, line), url)
        world.wait_until(lambda: world.engine.requests and world.engine.budget == 0)
        world.call(lambda: world.engine.engine.abort(world.engine.requests[0].request_id))
        world.call(lambda: world.engine.allow(None))
        done = ended(client, batch)
        assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        (entry,) = content(client, done["output_file_id"]).values()
        assert entry["response"]["status_code"] == 200
        usage = entry["response"]["body"]["usage"]
        assert 40 in {usage.get("completion_tokens"), usage.get("output_tokens")}
        assert not {"abort", "cancelled"} & {*re.findall(r'"(\w+)"', json.dumps(entry))}
        assert len(world.engine.requests) == 2


@pytest.mark.parametrize("answered", [False, True])
def test_a_batch_whose_lines_alone_are_gone_fails_by_name_with_what_it_has(
    tmp_path: pathlib.Path, answered: bool
) -> None:
    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        world.call(lambda: world.engine.allow(0))
        file_id = file_of(client, lines("ae") + b"\n" + lines("be", max_tokens=400))
        batch = create(client, file_id)
        world.wait_until(lambda: len(world.engine.requests) == 2)
        if answered:
            world.call(lambda: world.engine.allow(SOME_TURNS))
            wait_until(lambda: state(client, batch)["request_counts"]["completed"] == 1)
    (tmp_path / "anonymous" / f"{file_id}.jsonl").unlink()
    with batch_world(tmp_path) as world, world.client() as client:
        done = ended(client, batch)
        assert done["status"] == "failed"
        (error,) = done["errors"]["data"]
        assert error["code"] == "input_file_gone"
        assert file_id in error["message"]
        kept = {} if done["output_file_id"] is None else content(client, done["output_file_id"])
        assert [*kept] == (["ae"] if answered else [])


@pytest.mark.parametrize("stands", [False, True])
def test_a_folder_that_goes_away_is_waited_for(
    tmp_path: pathlib.Path, stands: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether nothing or an empty folder, as where a mount is missing, stands in its place."""
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    with batch_world(kept, batch_lines=2) as world, world.client() as client:
        world.call(lambda: world.engine.allow(0))
        batch = create(client, file_of(client, lines(*NAMES)))
        world.wait_until(lambda: len(world.engine.requests) == 2)
        kept.rename(gone)
        if stands:
            kept.mkdir()
        world.call(lambda: world.engine.allow(None))
        wait_until(lambda: state(client, batch)["errors"] is not None)
        waiting = state(client, batch)
        assert waiting["status"] in {"in_progress", "finalizing"}
        assert [each["code"] for each in waiting["errors"]["data"]] == ["disk_error"]
        code, _, message = refusal(upload(client, lines("a")), 500)
        assert (code, "--batch-dir is gone" in message, "Delete" in message) == ("disk_error", True, False)
        if stands:
            assert not [*kept.iterdir()]
            kept.rmdir()
        gone.rename(kept)
        done = ended(client, batch)
        assert (done["status"], done["errors"]) == ("completed", None)
        assert content(client, done["output_file_id"]).keys() == {*NAMES}
        assert sorted(prompts(world)) == sorted(NAMES)
    record = json.loads((kept / "anonymous" / f"{batch['id']}.json").read_text())
    assert (record["status"], record["errors"]) == ("completed", None)
    said = capsys.readouterr()
    assert (said.out + said.err).count("a batch waits for the disk") == 1


def test_a_full_disk_is_told_once_and_waited_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = [False], os.fsync

    def fsync(descriptor: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with batch_world(tmp_path, batch_lines=2) as world, world.client() as client:
        world.call(lambda: world.engine.allow(0))
        batch = create(client, file_of(client, lines(*NAMES)))
        world.wait_until(lambda: len(world.engine.requests) == 2)
        monkeypatch.setattr(os, "fsync", fsync)
        full[0] = True
        world.call(lambda: world.engine.allow(None))
        wait_until(lambda: state(client, batch)["errors"] is not None)
        waiting = state(client, batch)
        assert waiting["status"] == "in_progress"
        assert [each["code"] for each in waiting["errors"]["data"]] == ["disk_full"]
        assert waiting["request_counts"]["completed"] == 0
        assert refusal(upload(client, lines("a")), 507)[0] == "disk_full"
        assert len(world.engine.requests) == 2
        full[0] = False
        done = ended(client, batch)
        assert (done["status"], done["errors"]) == ("completed", None)
        assert content(client, done["output_file_id"]).keys() == {*NAMES}
        assert sorted(prompts(world)) == sorted(NAMES)


def test_chat_comes_before_every_line_that_does_not_run_yet(tmp_path: pathlib.Path) -> None:
    """By the order in which the engine gives rows: nothing of a batch gets one between a chat's arrival and its first step."""
    with batch_world(tmp_path, batch_lines=12) as world, world.client() as client:
        world.call(lambda: world.engine.allow(0))
        batch = create(client, file_of(client, lines(*NAMES)))
        world.wait_until(lambda: len(world.engine.requests) == 12)
        table = world.engine.engine.scheduler.table
        with ThreadPoolExecutor() as threads, recorded(table) as seated:
            body = {"prompt": "now", "max_tokens": 4, "temperature": 0, "seed": 7, "ignore_eos": True}
            asking = threads.submit(client.post, "/v1/completions", json=body)
            world.wait_until(lambda: len(world.engine.requests) == 13)
            world.call(lambda: world.engine.allow(None))
            assert asking.result().json()["choices"][0]["text"] == alone("now", tokens=4)
            assert ended(client, batch)["status"] == "completed"
        assert seated[0] == "default"
        assert seated.count(DEFERRED_CLASS) >= len(NAMES)


@contextlib.contextmanager
def recorded(table: SequenceTable) -> Iterator[list[str]]:
    """The classes of the sequences that get rows, in order."""
    seated: list[str] = []
    seat = table.seat

    def note(sequence: Sequence, now: float) -> int:
        seated.append(sequence.request.request_class)
        return seat(sequence, now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "seat", note)
        yield seated
