"""The timeline: which steps it shows, the round numbers on its axes, and a crowd of which every row is in one strip that leads to its sequences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.entrypoints.page.node import run_node


def place(now: int, end: int = 500, *, first: int = 0, follows: bool = False) -> list[Any]:
    return ["range", {"first": first, "next": end, "now": now, "follows": follows}]


@pytest.mark.parametrize(
    ("moves", "shown"),
    [
        ([place(500, follows=True)], [460, 500]),
        ([place(12, 12, follows=True)], [0, 12]),
        ([place(10)], [0, 40]),
        ([place(300)], [260, 300]),
        ([place(300), ["pan", -50], place(300)], [210, 250]),
        ([place(300), ["pan", 900], place(300)], [460, 500]),
        ([place(300), ["pan", -900], place(300)], [0, 40]),
        ([place(300), ["pan", -50], place(300), place(230)], [210, 250]),
        ([place(300), ["pan", -50], place(300), place(301)], [261, 301]),
        ([place(300), ["pan", -50], place(300), place(500, follows=True)], [460, 500]),
        ([place(300), ["zoomBy", -1], place(300)], [280, 300]),
        ([place(300), ["zoomBy", -1, 270], place(300)], [265, 285]),
        ([place(300), ["zoomBy", 1, 270], place(300)], [250, 330]),
        ([place(20), ["lookAt", 20], place(20)], [0, 40]),
        ([place(200), ["lookAt", 200], place(200)], [170, 210]),
        ([place(300), ["pan", -280], place(300), place(300, first=100)], [100, 140]),
    ],
)
def test_the_window_stays_in_the_log_and_finds_the_present_again(
    moves: list[list[Any]], shown: list[int]
) -> None:
    assert run_node("timeline_window", lines=[json.dumps(moves).encode()])[-1] == shown


@pytest.mark.parametrize(
    ("range_", "texts"),
    [
        ((0, 10, 5), ["0", "2", "4", "6", "8", "10"]),
        ((13.37, 14.9, 8), ["13.4", "13.6", "13.8", "14.0", "14.2", "14.4", "14.6", "14.8"]),
        ((0.0012, 0.0031, 4), ["0.0015", "0.0020", "0.0025", "0.0030"]),
        ((480, 1320, 9), ["500", "600", "700", "800", "900", "1000", "1100", "1200", "1300"]),
        ((5, 5, 3), ["5.000000000"]),
    ],
)
def test_ticks_are_round(range_: tuple[float, float, int], texts: list[str]) -> None:
    [[found, up]] = run_node("ticks", lines=[json.dumps(range_).encode()])
    assert found == texts
    assert up >= range_[1]
    assert f"{up:e}"[0] in "125"


HEIGHT = 300


def arrange(seats: int) -> Any:
    [crowd] = run_node("timeline_crowd", str(seats), "10")
    return crowd


@pytest.mark.parametrize("seats", [3, 24, 25, 48, 64, 100, 256, 1000])
def test_every_row_is_in_one_strip_that_leads_to_its_sequence_at_each_step(seats: int) -> None:
    crowd = arrange(seats)
    strips = crowd["strips"]
    assert [seat for each in strips for seat in range(each["first"], each["end"])] == list(range(seats))
    for each in strips:
        inside = range(each["first"], each["end"])
        assert each["early"] == [f"first {seat}" for seat in inside]
        assert each["late"] == [f"second {seat}" for seat in inside]
        last = each["end"] - 1
        assert each["name"] == (f"row {last}" if len(inside) == 1 else f"rows {each['first']}\u2013{last}")
    assert crowd["all"] == [f"second {seat}" for seat in range(seats)], "the keyboard goes from row to row"


@pytest.mark.parametrize(("seats", "per_strip"), [(24, 1), (64, 1), (100, 8), (256, 16), (1000, 64)])
def test_strips_stay_high_enough_to_be_seen_and_named(seats: int, per_strip: int) -> None:
    crowd = arrange(seats)
    assert crowd["strips"][0]["end"] == per_strip
    assert crowd["lane"] >= 12
    assert crowd["height"] <= HEIGHT + 80
