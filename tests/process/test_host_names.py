"""A server without keys on this machine, and a web page that had its own name point here."""

from __future__ import annotations

import pathlib

import pytest

from tests.process.server_process import server_process

STORY = {"model": "built-in", "prompt": "Once upon a time", "max_tokens": 2}


@pytest.mark.parametrize(("arguments", "foreign"), [((), 421), (("--api-key", "sk-test"), 200)])
def test_only_names_of_this_machine_and_those_allowed_are_answered(
    tmp_path: pathlib.Path, arguments: tuple[str, ...], foreign: int
) -> None:
    with server_process(tmp_path, *arguments) as server:
        server.wait_until_ready()
        with server.client("sk-test") as client:
            for host, status in (("localhost:80", 200), ("evil.example:80", foreign)):
                headers = {"host": host}
                assert client.post("/v1/completions", json=STORY, headers=headers).status_code == status
                assert client.get("/", headers=headers).status_code == status
                assert client.get("/readyz", headers=headers).status_code == 200


def test_a_proxys_name_can_be_allowed(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, "--allowed-host", "llm.example") as server:
        server.wait_until_ready()
        with server.client() as client:
            for host, status in (("llm.example", 200), ("127.0.0.1:80", 200), ("evil.example", 421)):
                assert client.get("/v1/models", headers={"host": host}).status_code == status
