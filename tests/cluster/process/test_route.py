"""`nanoserve route` in front of two servers that publish KV events, over real sockets."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest

from tests.patience import PATIENCE, wait_until
from tests.ports import reserved_port
from tests.process.command import COMMAND, environment
from tests.process.scripted_engine import COMMAND as SCRIPTED
from tests.process.scripted_engine import SLOW
from tests.process.server_process import ServerProcess, server_process

LONG = 100
SERVER = ("--deterministic", "--kv-events-port", "0", "--kv-events-replay-port", "0")


@attrs.frozen
class Routed:
    router: ServerProcess
    servers: list[ServerProcess]

    def ask(self, prompt: str | list[int], *, tokens: int = 8, at: ServerProcess | None = None) -> Any:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "seed": 1}
        with (at or self.router).client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, prompt: str, begun: threading.Event) -> tuple[str, bool]:
        """The text of a long answer, and whether it came to its end; `begun` is set with its first piece."""
        body = {"prompt": prompt, "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "stream": True}
        lines = []
        with self.router.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    lines.append(line)
                    begun.set()
        is_ended = lines[-1:] == ["data: [DONE]"]  # no line at all: it was cut before its first token
        events = [json.loads(line[6:]) for line in lines[:-1]]
        # The router adds an error to what has broken off, and the last line, too.
        is_whole = is_ended and not any("error" in each for each in events)
        return "".join([each["choices"][0]["text"] for each in events if "choices" in each]), is_whole

    def metric(self, name: str, number: int) -> float:
        with self.router.client() as client:
            page = client.get("/metrics").text
        found = re.search(
            rf'^nanoserve:router_{name}="{self.servers[number].url}"}} (\S+)$', page, re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    def running(self, number: int) -> float:
        return self.metric("replica_requests_running{replica", number)


def events_of(server: ServerProcess) -> str:
    """The ports of its KV events and of their replay, as a router wants them."""
    lines = map(json.loads, server.err.read_text().splitlines())
    said = next(line for line in lines if line["event"] == "KV events")
    return ",".join(said[name].rpartition(":")[2] for name in ("at", "replay"))


@contextlib.contextmanager
def kept_server(folder: pathlib.Path, *arguments: str) -> Iterator[ServerProcess]:
    """One that may be killed: nobody else gets its port then, and answers there in its place."""
    with reserved_port() as port, server_process(folder, "--port", str(port), *arguments) as server:
        yield server


@contextlib.contextmanager
def routing(folder: pathlib.Path, servers: list[ServerProcess], *arguments: str) -> Iterator[Routed]:
    """A router, which is to end well."""
    out, err = folder / "out", folder / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [*COMMAND, "route", "--port", "0", *arguments],
            stdout=out_file,
            stderr=err_file,
            env=environment(),
        )
    router = ServerProcess(process, out, err)
    try:
        router.wait_until_ready()
        yield Routed(router, servers)
        process.terminate()
        assert process.wait(PATIENCE) == 0, err.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two", "router")]
    with (
        kept_server(folders[0], *SERVER) as one,
        kept_server(folders[1], *SERVER) as two,
    ):
        servers = [one, two]
        for each in servers:
            each.wait_until_ready()
        named = [part for each in servers for part in ("--replica", f"{each.url},{events_of(each)}")]
        with routing(folders[2], servers, *named) as routed:
            yield routed


def test_two_servers_of_which_one_is_killed(routed: Routed) -> None:
    a_request_goes_to_where_its_prefix_is_though_the_router_never_sent_it_there(routed)
    a_server_that_is_killed_loses_only_what_it_had_begun_to_stream(routed)


def a_request_goes_to_where_its_prefix_is_though_the_router_never_sent_it_there(routed: Routed) -> None:
    for number in (1, 0):
        story = f"{number} foxes went to the river, and what they saw there was " + "a boat, " * 20
        before = routed.metric("replica_cached_blocks{replica", number)
        routed.ask(story, at=routed.servers[number])
        wait_until(lambda: routed.metric("replica_cached_blocks{replica", number) > before)  # noqa: B023 - called at once
        usage = routed.ask(story)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 32


def a_server_that_is_killed_loses_only_what_it_had_begun_to_stream(routed: Routed) -> None:
    prompts = [f"{number * 104729} birds, one story:" for number in range(3)]
    truths = {each: routed.ask(each, tokens=LONG)["choices"][0]["text"] for each in prompts}
    begun = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        with routed.servers[0].held_engine(), routed.servers[1].held_engine():
            streams = {each: threads.submit(routed.stream, each, begun) for each in prompts}
            whole = {each: threads.submit(routed.ask, each, tokens=LONG) for each in prompts[:1]}
            wait_until(lambda: routed.running(0) + routed.running(1) == 4)
            killed = routed.servers[0 if routed.running(0) else 1]
        assert begun.wait(PATIENCE)
        killed.process.kill()
        replies = {each: stream.result() for each, stream in streams.items()}
        for each, answer in whole.items():
            assert answer.result()["choices"][0]["text"] == truths[each]
    broken = [each for each in prompts if not replies[each][1]]
    for each, (text, is_whole) in replies.items():
        assert text == truths[each] if is_whole else truths[each].startswith(text)
    assert len(broken) < len(prompts)
    routed.ask("And then?")

    def is_missed() -> bool:
        with routed.router.client() as client:
            health = client.get("/health")
        assert health.status_code == 200
        return isinstance(health.json()["replicas"][killed.url], str)

    wait_until(is_missed, routed.router.err.read_text)


def test_a_server_that_is_stopped_loses_its_requests_to_the_other_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two", "router")]
    patience = ("--health-timeout", "2", "--health-interval", "0.1", "--health-failures", "3")
    with (
        server_process(folders[0], command=SCRIPTED) as one,
        server_process(folders[1], command=SCRIPTED) as two,
    ):
        for each in (one, two):
            each.wait_until_ready()
        named = ("--replica", one.url, "--replica", two.url, "--router-policy", "round-robin", *patience)
        with (
            routing(folders[2], [one, two], *named) as routed,
            ThreadPoolExecutor(4) as threads,
            routed.router.client() as client,
        ):
            body = {"prompt": [SLOW], "max_tokens": 900, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = filter(None, answer.iter_lines())
                next(lines)
                stopped = 0 if routed.running(0) else 1
                routed.servers[stopped].signal(signal.SIGSTOP)
                prompts = [[number, 7] for number in range(5, 9)]
                whole = [threads.submit(routed.ask, each) for each in prompts]
                *_, error, done = lines
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
            assert done == "data: [DONE]"
            texts = [each.result()["choices"][0]["text"] for each in whole]
            lively = routed.servers[1 - stopped]
            assert texts == [routed.ask(each, at=lively)["choices"][0]["text"] for each in prompts]
            broken = [routed.metric('requests_total{outcome="broken",replica', number) for number in (0, 1)]
            assert broken[1 - stopped] == 0
            assert broken[stopped] > 1
