"""Batches of a real server, by OpenAI's own client: beside chat, and through the death of the engine, of the server, and of both."""

from __future__ import annotations

import json
import pathlib
import signal
from collections.abc import Callable
from typing import Any, Final

import openai
import psutil
import pytest

from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.sampling import SamplingParams
from tests.patience import PATIENCE, wait_until
from tests.process.server_process import ServerProcess, server_process

COUNT = 40
TOKENS = 48
URL: Final = "/v1/completions"
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--max-num-seqs", "4")
LIVING = {"validating", "in_progress", "finalizing", "cancelling"}


def requests(path: pathlib.Path, count: int = COUNT) -> pathlib.Path:
    """So many lines, the first `COUNT` of them unlike each other."""
    body = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    lines = [
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": URL,
            "body": {**body, "prompt": f"Once {n % COUNT} upon"},
        }
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0)


def begin(client: openai.OpenAI, path: pathlib.Path) -> Any:
    made = client.files.create(file=path, purpose="batch")
    assert (made.purpose, made.filename, made.bytes) == ("batch", path.name, path.stat().st_size)
    return client.batches.create(
        input_file_id=made.id, endpoint=URL, completion_window="24h", metadata={"for": "a test"}
    )


def counts(client: openai.OpenAI, batch_id: str) -> Any:
    return client.batches.retrieve(batch_id).request_counts


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    wait_until(lambda: client.batches.retrieve(batch_id).status not in LIVING)
    return client.batches.retrieve(batch_id)


def texts(client: openai.OpenAI, file_id: str) -> dict[str, str]:
    """The answers by their lines, of which each stands once."""
    entries = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in entries}
    assert len(found) == len(entries)
    return found


TALK: Final[list[Any]] = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """What each line is answered offline, and the chat beside them."""
    lines = {f"line-{n}": f"Once {n} upon" for n in range(COUNT)}
    with LLM(device="cpu", dtype="float32", threads=1) as llm:
        answers = llm.generate(
            list(lines.values()), SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        )
        talk = llm.chat(TALK, SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True))
    found = {name: each.outputs[0].text for name, each in zip(lines, answers, strict=True)}
    return {**found, "chat": talk[0].outputs[0].text}


def chat(client: openai.OpenAI) -> str:
    done = client.chat.completions.create(
        model="built-in",
        messages=TALK,
        max_tokens=24,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return done.choices[0].message.content or ""


def kill_all(server: ServerProcess) -> None:
    """The server and its engine, at once."""
    for each in (psutil.Process(server.process.pid), *server.children()):
        each.send_signal(signal.SIGKILL)
    server.wait()


def ask_to_leave(server: ServerProcess) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "ended unfinished" not in server.err.read_text()


def interrupted(
    folder: pathlib.Path, count: int, end: Callable[[ServerProcess], None]
) -> tuple[tuple[str, ...], str, bytes]:
    """The options of a server that was ended after it had answered some lines of a batch of so many, that batch, and what is written of it.

    Where it was quick enough to answer all before, another one has ten times as many.
    """
    options = (*OPTIONS, "--batch-dir", str(folder / f"kept-{count}"))
    with server_process(folder, *options) as server:
        server.wait_until_ready()
        with client_of(server) as client:
            batch = begin(client, requests(folder / "requests.jsonl", count))
            wait_until(lambda: counts(client, batch.id).completed >= 3)
        end(server)
    (written,) = (folder / f"kept-{count}" / "anonymous").glob("*-output.jsonl")
    raw = written.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    return (options, batch.id, whole) if whole.count(b"\n") < count else interrupted(folder, 10 * count, end)


@pytest.mark.parametrize("end", [kill_all, ask_to_leave])
def test_another_server_loses_nothing_and_repeats_nothing(
    tmp_path: pathlib.Path, expected: dict[str, str], end: Callable[[ServerProcess], None]
) -> None:
    options, batch_id, whole = interrupted(tmp_path, COUNT, end)
    assert whole.count(b"\n") >= 3
    with server_process(tmp_path, *options) as server:
        server.wait_until_ready()
        with client_of(server) as client:
            done = ended(client, batch_id)
            count = done.request_counts.total
            assert (done.status, done.metadata) == ("completed", {"for": "a test"})
            assert done.request_counts.model_dump() == {"total": count, "completed": count, "failed": 0}
            answers = {f"line-{n}": expected[f"line-{n % COUNT}"] for n in range(count)}
            assert texts(client, done.output_file_id) == answers
            assert client.files.content(done.output_file_id).read().startswith(whole)
            assert counted(server) == count - whole.count(b"\n")


def counted(server: ServerProcess) -> float:
    """Requests that its engine was given."""
    return server.metrics()["nanoserve:requests_accepted_total"]


def test_beside_chat_and_through_the_death_of_the_engine(
    tmp_path: pathlib.Path, expected: dict[str, str]
) -> None:
    options = (*OPTIONS, "--batch-dir", str(tmp_path / "kept"), "--http-workers", "2")
    with server_process(tmp_path, *options) as server:
        server.wait_until_ready()
        with client_of(server) as client:
            large = client.files.create(file=("large", b"x" * (9 << 20)), purpose="batch")
            assert large.bytes == 9 << 20
            path = requests(tmp_path / "requests.jsonl")
            batch, other = begin(client, path), begin(client, path)
            assert chat(client) == expected["chat"]
            wait_until(lambda: counts(client, batch.id).completed >= 3)
            (engine,) = [each for each in server.children() if "engine_host" in " ".join(each.cmdline())]
            engine.kill()
            assert chat(client) == expected["chat"]
            assert client.batches.cancel(other.id).status in {"cancelling", "cancelled"}
            assert (ended(client, batch.id).status, ended(client, other.id).status) == (
                "completed",
                "cancelled",
            )
            assert [each.id for each in client.batches.list(limit=1)] == [other.id, batch.id]
            done = client.batches.retrieve(batch.id)
            assert done.output_file_id is not None
            assert done.error_file_id is None
            assert texts(client, done.output_file_id) == {k: v for k, v in expected.items() if k != "chat"}
            kept = {each.id for each in client.files.list(limit=2)}
            assert {done.output_file_id, batch.input_file_id, other.input_file_id} <= kept
            for file_id in kept:
                assert client.files.delete(file_id).deleted
            with pytest.raises(openai.NotFoundError, match="you have no file"):
                client.files.retrieve(done.output_file_id)
        assert server.metrics()["nanoserve:engine_restarts_total"] == 1
        ask_to_leave(server)
