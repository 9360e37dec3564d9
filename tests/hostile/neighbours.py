"""Those who want nothing but their tokens: streams that go on beside the attack, compared with streams that ran alone."""

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
Told = tuple[str, tuple[int, ...], tuple[str, ...]]
"""Text, token ids and finish reasons of a stream."""


def stream(server: ServerProcess, key: str, request: Mapping[str, Any]) -> Told:
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


def alone(server: ServerProcess, key: str) -> list[Told]:
    """What each of them is told while nobody else asks for anything."""
    return [stream(server, key, request) for request in REQUESTS]


class Neighbours:
    """Each asks the same again and again until told to stop; `differences` must stay empty."""

    def __init__(self, server: ServerProcess, key: str, alone: Sequence[Told]) -> None:
        self._server, self._key, self._alone = server, key, alone
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in range(len(REQUESTS))]
        self.finished = [0] * len(REQUESTS)
        self.differences: list[str] = []

    def __enter__(self) -> Self:
        for told in self._alone:
            assert (len(told[1]), told[2]) == (LENGTH, ("length",))
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
                told = stream(self._server, self._key, REQUESTS[number])
            except (AssertionError, ValueError, LookupError, httpx.HTTPError) as error:
                self.differences.append(f"{number}: {error!r}")
                return
            self.finished[number] += 1
            if told != self._alone[number]:
                self.differences.append(f"{number}: {told} and not {self._alone[number]}")
