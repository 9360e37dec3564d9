"""Ordinary streams beside the attack, compared with the same streams alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

from tests.patience import PATIENCE
from tests.process.server_process import ServerProcess

LENGTH = 120
REQUESTS: tuple[Mapping[str, Any], ...] = (
    {"prompt": "Once upon a time", "temperature": 0, "seed": 1},
    {"prompt": "The old lighthouse", "temperature": 1.2, "seed": 7},
    {"prompt": "Two friends met", "temperature": 0.8, "top_p": 0.9, "seed": 2**40},
    {"prompt": "A small bird", "temperature": 1.0, "top_k": 40, "seed": 3, "frequency_penalty": 0.5},
)
Streamed = tuple[str, tuple[int, ...], tuple[str, ...]]
"""Text, token ids and finish reasons of a stream."""


def stream(server: ServerProcess, key: str, request: Mapping[str, Any]) -> Streamed:
    """One stream from start to end."""
    body = {**request, "max_tokens": LENGTH, "ignore_eos": True, "stream": True, "return_token_ids": True}
    text, ids, reasons = "", [], []
    with server.client(key) as client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        choice = json.loads(line)["choices"][0]
        text += choice["text"]
        ids += choice["token_ids"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, tuple(ids), tuple(reasons)


def alone(server: ServerProcess, key: str) -> list[Streamed]:
    """The answer to each while nothing else runs."""
    return [stream(server, key, request) for request in REQUESTS]


class Neighbours:
    """Each asks the same again and again until the block ends; `differences` must stay empty."""

    def __init__(self, server: ServerProcess, key: str, alone: Sequence[Streamed]) -> None:
        self._server, self._key, self._alone = server, key, alone
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in range(len(REQUESTS))]
        self.finished = [0] * len(REQUESTS)
        self.differences: list[str] = []

    def __enter__(self) -> Self:
        for answered in self._alone:
            assert (len(answered[1]), answered[2]) == (LENGTH, ("length",))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, number: int) -> None:
        while not self._stopping.is_set():
            try:
                answered = stream(self._server, self._key, REQUESTS[number])
            except (AssertionError, ValueError, LookupError, httpx.HTTPError) as error:
                self.differences.append(f"{number}: {error!r}")
                return
            self.finished[number] += 1
            if answered != self._alone[number]:
                self.differences.append(f"{number}: {answered} and not {self._alone[number]}")
