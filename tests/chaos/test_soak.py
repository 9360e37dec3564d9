"""Many requests leave nothing behind: no memory, no blocks, no open files."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.soak import Look, soak
from tests.chaos.subject import Subject

MIB = 2**20


@pytest.mark.parametrize("requests", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_requests_leave_nothing_behind(subject: Subject, requests: int) -> None:
    looks: list[Look] = []
    asyncio.run(soak(subject, requests, looks.append))
    assert all(each.books.is_idle and each.books.is_balanced for each in looks)
    assert len({(each.files["http"], each.files["engine"]) for each in looks[1:]}) == 1
    for process in ("http", "engine"):
        grown = looks[-1].memory[process] - looks[len(looks) // 2].memory[process]
        assert grown < 8 * MIB
    assert looks[-1].books.accepted - looks[0].books.accepted > requests * 0.8
