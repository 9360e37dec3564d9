"""What a router sets up before requests come."""

from __future__ import annotations

import socket

import httpx
import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.entrypoints.route.fleet import Fleet, RoutingTable
from nanoserve_cluster.entrypoints.route.run import read_both, socket_options
from nanoserve_cluster.entrypoints.route.settings import RouteSettings


def test_connections_break_also_where_what_is_sent_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_USER_TIMEOUT", 18, raising=False)
    assert (socket.IPPROTO_TCP, 18, 25_000) in socket_options()


def test_options_that_a_platform_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    every = socket_options()
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    assert len(socket_options()) == len(every) - 1


def test_a_health_path_without_a_slash_is_one_clear_error() -> None:
    settings = RouteSettings(health_path="readyz")
    with pytest.raises(BadValueError, match="must begin with /") as caught:
        Fleet([], RoutingTable("round-robin", 16), httpx.AsyncClient(), settings)
    assert caught.value.parameter == "health_path"


@pytest.mark.parametrize(
    ("replica", "prefill", "said"),
    [
        (["http://a:1", "a:1/v1"], [], "replica: http://a:1 is named 2 times"),
        (["http://a:1"], ["http://a:1"], "replica: http://a:1 is named 2 times"),
        (["http://a:1,5557"], ["http://b:1,5557"], "prefill_replica: takes no ports"),
    ],
)
def test_a_server_is_named_once_and_one_for_prompts_without_ports(
    replica: list[str], prefill: list[str], said: str
) -> None:
    with pytest.raises(BadValueError, match=said):
        read_both(RouteSettings(replica=tuple(replica), prefill_replica=tuple(prefill)))
