"""Requests that are sent while a test goes on: each in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from tests.patience import PATIENCE


class Sender:
    """Sends completions of prompts given as token ids."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)
        self._threads: list[threading.Thread] = []
        self._failures: list[str] = []

    def send(self, prompt: list[int], **fields: Any) -> None:
        """Send one, which generates all the tokens that it may."""
        body = {"model": "built-in", "prompt": prompt, "ignore_eos": True, "seed": 1}
        thread = threading.Thread(target=self._post, args=[body | {"max_tokens": 8} | fields], daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Until all are answered, with success."""
        for each in self._threads:
            each.join(PATIENCE)
            assert not each.is_alive(), "a request is not answered"
        assert not self._failures, self._failures

    def close(self) -> None:
        self._client.close()

    def _post(self, body: dict[str, Any]) -> None:
        try:
            answer = self._client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            self._failures.append(repr(error))
            return
        if answer.status_code != 200:
            self._failures.append(answer.text)


@contextlib.contextmanager
def sender(url: str) -> Iterator[Sender]:
    """One for a server; every request is waited for at the end."""
    sending = Sender(url)
    try:
        yield sending
        sending.wait()
    finally:
        sending.close()
