"""How much there is to read: lines of Python in each room, which may only become fewer.

To raise a bound is a commit of its own, with the reason; to lower one belongs to the commit that made it possible.
"""

from __future__ import annotations

import pathlib

import pytest

SOURCES = pathlib.Path(__file__).parents[3] / "src" / "nanoserve"
CLUSTER = SOURCES.with_name("nanoserve_cluster")
CLUSTER_BOUND = 4360
SLACK = 150
"""A room that is lighter than its bound by more than this lowers it."""
ROOMS = {
    "ports": 4003,
    "domain": 9038,
    "kernels": 16460,
    "adapters/pytorch": 16958,
    "adapters": 11115,
    "entrypoints/server": 10949,
    "entrypoints": 12001,
}
"""The most lines of each room; those of a folder named here do not count for the one it lies in."""


def lines_of(folder: pathlib.Path, inner: frozenset[pathlib.Path] = frozenset()) -> int:
    pages = folder.rglob("*.py")
    return sum(len(page.read_text().splitlines()) for page in pages if not inner & set(page.parents))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_may_only_become_lighter(room: str) -> None:
    inner = frozenset(SOURCES / other for other in ROOMS if other.startswith(f"{room}/"))
    assert ROOMS[room] - SLACK <= lines_of(SOURCES / room, inner) <= ROOMS[room]


def test_the_clusters_may_only_become_lighter() -> None:
    assert CLUSTER_BOUND - SLACK <= lines_of(CLUSTER) <= CLUSTER_BOUND


def test_every_room_has_a_bound() -> None:
    folders = {page.name for page in SOURCES.iterdir() if (page / "__init__.py").is_file()}
    assert folders == {room.partition("/")[0] for room in ROOMS}
