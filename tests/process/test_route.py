"""`nanoserve route` in front of two servers that publish KV events, over real sockets."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import httpx
import pytest

from tests.patience import PATIENCE, wait_until
from tests.process.command import COMMAND, environment
from tests.process.server_process import ServerProcess, server_process

LONG = 100
SERVER = ("--deterministic", "--kv-events-port", "0", "--kv-events-replay-port", "0")


@attrs.frozen
class Routed:
    router: ServerProcess
    servers: list[ServerProcess]

    def ask(self, prompt: str, *, tokens: int = 8, at: ServerProcess | None = None) -> Any:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with (at or self.router).client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, prompt: str) -> tuple[str, bool]:
        """The text of a long answer, and whether it came to its end."""
        body = {"prompt": prompt, "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "stream": True}
        text = ""
        with self.router.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        for line in lines[:-1]:
            text += json.loads(line[6:])["choices"][0]["text"]
        return text, lines[-1] == "data: [DONE]"

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


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two", "router")]
    with server_process(folders[0], *SERVER) as one, server_process(folders[1], *SERVER) as two:
        servers = [one, two]
        for each in servers:
            each.wait_until_ready()
        named = [part for each in servers for part in ("--replica", f"{each.url},{events_of(each)}")]
        out, err = pathlib.Path(folders[2] / "out"), pathlib.Path(folders[2] / "err")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*COMMAND, "route", "--port", "0", *named],
                stdout=out_file,
                stderr=err_file,
                env=environment(),
            )
        router = ServerProcess(process, out, err)
        try:
            router.wait_until_ready()
            yield Routed(router, servers)
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0, err.read_text()


def test_a_request_goes_to_where_its_prefix_is_though_the_router_never_sent_it_there(routed: Routed) -> None:
    for number in (1, 0):
        story = f"{number} foxes went to the river, and what they saw there was " + "a boat, " * 20
        before = routed.metric("replica_cached_blocks{replica", number)
        routed.ask(story, at=routed.servers[number])
        wait_until(lambda: routed.metric("replica_cached_blocks{replica", number) > before)  # noqa: B023 - called at once
        usage = routed.ask(story)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 32


def test_a_server_that_is_killed_loses_only_what_it_had_begun_to_stream(routed: Routed) -> None:
    prompts = [f"{number * 104729} birds, one story:" for number in range(3)]
    truths = {each: routed.ask(each, tokens=LONG)["choices"][0]["text"] for each in prompts}
    with ThreadPoolExecutor(4) as threads:
        streams = {each: threads.submit(routed.stream, each) for each in prompts}
        whole = {each: threads.submit(routed.ask, each, tokens=LONG) for each in prompts[:1]}
        wait_until(lambda: routed.running(0) + routed.running(1) == 4)
        routed.servers[0].process.kill()
        replies = {each: stream.result() for each, stream in streams.items()}
        for each, answer in whole.items():
            assert answer.result()["choices"][0]["text"] == truths[each]
    broken = [each for each in prompts if not replies[each][1]]
    for each, (text, is_whole) in replies.items():
        assert text == truths[each] if is_whole else truths[each].startswith(text)
    assert len(broken) < len(prompts)
    routed.ask("And then?")
    health = httpx.get(f"{routed.router.url}/health", trust_env=False)
    assert health.status_code == 200
    assert isinstance(health.json()["replicas"][routed.servers[0].url], str)
