"""Which graph a step replays while its size has none of its own."""

from __future__ import annotations

from nanoserve.adapters.pytorch.cuda.graphs import StandIns


def test_others_stand_in_for_a_graph_until_it_has_been_asked_for_often() -> None:
    stand_ins = StandIns[str](3)
    stand_ins.owners |= {"large", "huge"}
    others = ["middle", "large", "huge"]
    assert stand_ins.choose("huge", others) == "huge"
    assert [stand_ins.choose("small", others) for _ in range(5)] == ["large"] * 3 + ["small"] * 2
    assert stand_ins.choose("tiny", ["small", "large"]) == "small"


def test_where_none_can_stand_in_the_step_has_its_own_from_then_on() -> None:
    stand_ins = StandIns[str](3)
    stand_ins.owners.add("large")
    assert stand_ins.choose("small", ["middle"]) == "small"
    assert stand_ins.choose("small", ["large"]) == "small"
