"""A server of several HTTP processes as its clients meet it: over a scripted engine, each client bound to one of the processes."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import psutil

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.domain.scheduling.admission import derive_seed
from tests.fakes.memory_runner import expected_token
from tests.patience import wait_until
from tests.process import scripted_engine
from tests.process.scripted_engine import SLOW
from tests.process.server_process import ServerProcess, server_process

PROMPT = (5, 6, 7)
ENGINE_HEADER = "x-engine-request"
SLOWLY = (SLOW, *PROMPT)
"""A prompt that makes each step take long enough for something to happen meanwhile."""


def expected(tokens: int, seed: int, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """What the scripted model answers."""
    ids = [*prompt]
    for _ in range(tokens):
        ids.append(expected_token(ids, derive_seed(seed, 0), read_spec(str(model_folder())).vocab_size))
    return ids[len(prompt) :]


def body(tokens: int, seed: int, prompt: tuple[int, ...] = PROMPT, **more: Any) -> dict[str, Any]:
    """A request for `/v1/completions` that is streamed, with the ids of its tokens."""
    fixed = {"model": "built-in", "ignore_eos": True, "return_token_ids": True, "stream": True}
    return {**fixed, "prompt": [*prompt], "max_tokens": tokens, "seed": seed, **more}


@attrs.define
class Streamed:
    """What came of a streamed answer."""

    ids: list[int] = attrs.field(factory=list)
    finish: str | None = None
    error: dict[str, Any] | None = None
    is_done: bool = False

    def read(self, lines: Iterator[str]) -> Streamed:
        """To the end of the stream."""
        while not self.is_done and (line := next(lines, None)) is not None:
            self.take(line)
        return self

    def take(self, line: str) -> bool:
        """One line; whether it had tokens."""
        self.is_done = self.is_done or line == "data: [DONE]"
        if not line.startswith("data: {"):
            return False
        frame = json.loads(line[6:])
        self.error = frame.get("error", self.error)
        for choice in frame.get("choices", ()):
            self.ids += choice.get("token_ids", [])
            self.finish = choice["finish_reason"] or self.finish
        return bool(self.ids)

    def read_first(self, lines: Iterator[str]) -> Streamed:
        """To its first token."""
        while not self.take(next(lines)):
            assert self.error is None
        return self


def ask(client: httpx.Client, tokens: int = 3, seed: int = 1, **more: Any) -> httpx.Response:
    return client.post("/v1/completions", json=body(tokens, seed, stream=False, **more))


@contextlib.contextmanager
def clients_of(
    server: ServerProcess, count: int, key: str | None = None
) -> Iterator[dict[str, httpx.Client]]:
    """Clients of so many different HTTP processes, by name: the connection of each is kept, and ends at that process."""
    found: dict[str, httpx.Client] = {}
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            client = server.client(key)
            answer = ask(client)
            assert answer.status_code == 200, answer.text
            owner = answer.headers[ENGINE_HEADER].partition(".")[0]
            if owner in found:
                client.close()
            else:
                found[owner] = stack.enter_context(contextlib.closing(client))
        yield found


@contextlib.contextmanager
def streaming(client: httpx.Client, asked: dict[str, Any]) -> Iterator[tuple[Streamed, Iterator[str]]]:
    """A stream that has its first token."""
    with client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        yield Streamed().read_first(lines), lines


def processes(server: ServerProcess) -> list[psutil.Process]:
    """The HTTP processes, in the order in which they were started."""
    children = psutil.Process(server.process.pid).children()
    return sorted((each for each in children if is_http(each)), key=lambda each: each.create_time())


def is_http(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "nanoserve.entrypoints.server.workers.program" in process.cmdline()
    return False


def process_of(server: ServerProcess, client: httpx.Client) -> psutil.Process:
    """The HTTP process at the other end of a client's connection."""
    answer = ask(client)
    port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
    [found] = [
        each
        for each in processes(server)
        if port in {getattr(one.raddr, "port", None) for one in each.net_connections("inet")}
    ]
    return found


@contextlib.contextmanager
def two_processes(folder: pathlib.Path, *arguments: str) -> Iterator[ServerProcess]:
    command = scripted_engine.COMMAND
    with server_process(folder, "--http-workers", "2", *arguments, command=command) as server:
        server.wait_until_ready()
        yield server


def balanced(seen: dict[str, float]) -> bool:
    living = seen["nanoserve:num_requests_running"] + seen["nanoserve:num_requests_waiting"]
    accepted = seen["nanoserve:requests_accepted_total"]
    return accepted == seen["nanoserve:requests_finished_total"] + living


def wait_for_accepted(server: ServerProcess, count: float) -> None:
    wait_until(lambda: server.metrics()["nanoserve:requests_accepted_total"] == count, server.metrics)
