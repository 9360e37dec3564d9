"""When the names that requests call a server by are looked at."""

from __future__ import annotations

import pathlib

import pytest

from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, ListenSettings
from nanoserve.entrypoints.server.sockets import host_names, listening_sockets

NOT_LOOKED_AT = None


def names(listen: ListenSettings, *allowed: str, has_keys: bool = False) -> frozenset[str] | None:
    with listening_sockets(listen) as sockets:
        return host_names(AccessSettings(allowed_host=allowed), listen, sockets, has_keys=has_keys)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_loopback_they_are_unless_there_are_keys(host: str) -> None:
    listen = ListenSettings(host=host, port=0)
    assert names(listen) == frozenset({host})
    assert names(listen, has_keys=True) is NOT_LOOKED_AT


def test_elsewhere_they_are_not(tmp_path: pathlib.Path) -> None:
    assert names(ListenSettings(host="0.0.0.0", port=0)) is NOT_LOOKED_AT
    assert names(ListenSettings(uds=str(tmp_path / "api.sock"))) is NOT_LOOKED_AT


@pytest.mark.parametrize("has_keys", [False, True])
def test_where_names_are_given_they_always_are(tmp_path: pathlib.Path, *, has_keys: bool) -> None:
    for listen in (
        ListenSettings(port=0),
        ListenSettings(host="0.0.0.0", port=0),
        ListenSettings(uds=str(tmp_path / "api.sock")),
    ):
        assert names(listen, "box", "other", has_keys=has_keys) == frozenset({"box", "other", listen.host})
