"""Names that only this machine can stand behind, and those that anybody could point at it."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.host_names import host_name, names_this_machine


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "localhost.",
        "page.localhost:80",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.255.255.254",
        "[::1]",
        "[::1]:8000",
        "[0:0:0:0:0:0:0:1]",
    ],
)
def test_what_is_this_machine_whatever_a_name_server_says(host: str) -> None:
    assert names_this_machine(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8000",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "127.evil.example",
        "128.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::2]",
        "::1",
        "[::1",
        "localhost:8000:1",
        "localhost:x",
        "localhost/",
        "user@localhost",
        "localhost evil.example",
        "localhost,evil.example",
        "\uff4cocalhost",
        "\uff1127.0.0.1",
        "localhost\n",
    ],
)
def test_what_may_be_another(host: str) -> None:
    assert not names_this_machine(host)


def test_a_name_is_told_without_its_port_and_its_case() -> None:
    assert host_name("Box.Example.:8000") == "box.example"
    assert host_name("[FD00::1]:80") == "[fd00::1]"
    assert host_name("http://box") is None
