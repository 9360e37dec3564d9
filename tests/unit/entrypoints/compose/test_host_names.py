"""What only its machine can stand behind, and names that anybody could point at this one."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.compose.host_names import host_name, needs_no_name_server


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
        "[::ffff:7f00:1]:8000",
        "0.0.0.0:8000",
        "10.1.2.3",
        "[fd00::1]",
    ],
)
def test_what_is_where_it_is_whatever_a_name_server_says(host: str) -> None:
    assert needs_no_name_server(host)


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
        "127.1",
        "256.0.0.1",
        "[::1%25lo]",
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
def test_what_may_have_been_pointed_here(host: str) -> None:
    assert not needs_no_name_server(host)


def test_a_name_is_told_without_its_port_and_its_case() -> None:
    assert host_name("Box.Example.:8000") == "box.example"
    assert host_name("[FD00::1]:80") == "[fd00::1]"
    assert host_name("http://box") is None
