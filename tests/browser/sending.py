"""Requests that are sent while a test goes on: each in a thread of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import attrs
import httpx

from tests.patience import PATIENCE


@attrs.define
class Sender:
    """Sends completions of prompts given as token ids."""

    _client: httpx.Client
    _pool: ThreadPoolExecutor
    _answers: list[Future[httpx.Response]] = attrs.field(factory=list)

    def send(self, prompt: list[int], **fields: Any) -> None:
        """Send one, which generates all the tokens that it may."""
        body = {"model": "built-in", "prompt": prompt, "ignore_eos": True, "seed": 1, "max_tokens": 8}
        self._answers.append(self._pool.submit(self._client.post, "/v1/completions", json=body | fields))

    def wait(self) -> None:
        """Until all are answered, with success."""
        for each in self._answers:
            answer = each.result(PATIENCE)
            assert answer.status_code == 200, answer.text


@contextlib.contextmanager
def sender(url: str) -> Iterator[Sender]:
    """One for a server; every request is waited for at the end."""
    with (
        ThreadPoolExecutor(max_workers=64) as pool,
        httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client,
    ):
        sending = Sender(client, pool)
        yield sending
        sending.wait()
