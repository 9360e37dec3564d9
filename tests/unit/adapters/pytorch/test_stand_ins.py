"""Which graph a step replays while its own is not captured."""

from __future__ import annotations

from typing import Any

from nanoserve.adapters.pytorch.cuda.graphs import StandIns


def test_others_stand_in_for_a_graph_until_it_has_been_asked_for_often() -> None:
    captured: Any = {"large", "huge"}
    stand_ins = StandIns[str](captured, 3)
    others = ["middle", "large", "huge"]
    assert stand_ins.choose("huge", others) == "huge"
    assert [stand_ins.choose("small", others) for _ in range(5)] == ["large"] * 3 + ["small"] * 2
    captured.add("small")
    assert stand_ins.choose("small", others) == "small"


def test_where_none_can_stand_in_the_step_has_its_own() -> None:
    captured: Any = {"large"}
    assert StandIns[str](captured, 3).choose("small", ["middle"]) == "small"
    assert StandIns[str](None, 3).choose("small", ["large"]) == "small"
