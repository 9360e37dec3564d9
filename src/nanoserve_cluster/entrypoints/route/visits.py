"""A request at a replica: how it is made of a client's, and how a router counts it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
import httpx

from nanoserve_cluster.domain.routing.router import Placement
from nanoserve_cluster.entrypoints.route.fleet import Fleet, Replica, RoutingTable

_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}
"""Headers of one connection, not of the request or answer on it: these, and those that `connection` names (RFC 9110, 7.6.1)."""
_OWN: Final = {b"host", b"content-length", b"expect"}
"""Headers of a request that are made again."""


@attrs.define(eq=False)
class Visit:
    """A request at a replica; `outcome` says how it ended, `is_computed` whether its prompt is in the cache there."""

    table: RoutingTable
    replica: Replica
    placement: Placement
    life: int
    outcome: str = "left"
    is_prefilled: bool = False
    is_computed: bool = True

    def note_prefilled(self) -> None:
        """Its prompt is computed, or will not be."""
        if self.replica.life == self.life and not self.is_prefilled:
            self.table.note_prefilled(self.placement)
        self.is_prefilled = True


@contextlib.contextmanager
def visiting(
    fleet: Fleet, replica: Replica, placement: Placement, ended: Counter[tuple[str, str]]
) -> Iterator[Visit]:
    """Count a request at a replica; what ends in another life of the replica is not counted in this one."""
    visit = Visit(fleet.table, replica, placement, replica.life)
    replica.requests += 1
    try:
        yield visit
    finally:
        replica.requests -= 1
        ended[replica.url, visit.outcome] += 1
        visit.note_prefilled()
        if replica.life == visit.life:
            if not visit.is_computed:
                fleet.table.note_not_computed(placement)
            fleet.table.note_ended(placement)


def request_to(replica: Replica, scope: Any, target: bytes, body: bytes) -> httpx.Request:
    """The client's request, to a replica."""
    base = httpx.URL(replica.url)
    url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + target)
    headers = passed_on(scope["headers"], _OWN)
    if scope.get("client"):
        headers.append((b"x-forwarded-for", scope["client"][0].encode()))
    return httpx.Request(scope["method"], url, headers=headers, content=body)


def passed_on(headers: Iterable[tuple[bytes, bytes]], left_out: set[bytes]) -> list[tuple[bytes, bytes]]:
    """Those of a request or an answer that go on to the other side, without `left_out`; names are in small letters."""
    lower = [(name.lower(), value) for name, value in headers]
    named = b",".join(value.lower() for name, value in lower if name == b"connection").split(b",")
    return [each for each in lower if each[0] not in _HOP | left_out | {name.strip() for name in named}]
