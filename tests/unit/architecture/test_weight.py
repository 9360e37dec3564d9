"""How much there is to read: lines of Python in each room, which may only become fewer.

To raise a bound is a commit of its own, with the reason; to lower one belongs to the commit that made it possible.
"""

from __future__ import annotations

import pathlib

import pytest

SOURCES = pathlib.Path(__file__).parents[3] / "src" / "nanoserve"
SLACK = 150
"""A room that is lighter than its bound by more than this lowers it."""
ROOMS = {
    "ports": 3935,
    "domain": 8640,
    "kernels": 14130,
    "adapters/pytorch": 14940,
    "adapters": 10926,
    "entrypoints/server": 10890,
    "entrypoints": 11636,
}
"""The most lines of each room; those of a folder named here do not count for the one it lies in."""


def lines_of(room: str) -> int:
    inner = [SOURCES / other for other in ROOMS if other.startswith(f"{room}/")]
    pages = (SOURCES / room).rglob("*.py")
    return sum(len(page.read_text().splitlines()) for page in pages if not set(inner) & set(page.parents))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_may_only_become_lighter(room: str) -> None:
    assert ROOMS[room] - SLACK <= lines_of(room) <= ROOMS[room]


def test_every_room_has_a_bound() -> None:
    folders = {page.name for page in SOURCES.iterdir() if (page / "__init__.py").is_file()}
    assert folders == {room.partition("/")[0] for room in ROOMS}
