"""Who runs when: order, priorities, classes and room."""

from __future__ import annotations

import pytest

from nanoserve.domain.scheduling.limits import Policy
from nanoserve.domain.sequence import Phase, Trigger
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import SequenceAdmitted, TokensGenerated
from nanoserve.ports.model_spec import CacheGroup, Recurrent
from nanoserve.ports.request import FinishReason
from tests.unit.domain.world import BATCH, FULL, INTERACTIVE, World, oracle


def admission_order(world: World) -> list[str]:
    """Every first admission, in order, until all is done."""
    names = []
    while world.engine.has_work:
        names += [
            event.request_id
            for event in world.turn()
            if isinstance(event, SequenceAdmitted) and not event.resumed
        ]
    return names


def running(world: World) -> list[str]:
    return [sequence.request.request_id for sequence in world.scheduler.table.rows.running]


def test_the_head_of_the_line_is_never_skipped_for_one_that_would_fit() -> None:
    world = World(num_blocks=12)
    world.add("first", range(16), max_tokens=20)
    world.turn()
    world.add("large", range(100, 132), max_tokens=2)
    world.add("small", range(200, 202), max_tokens=2)
    world.turn()
    assert running(world) == ["first"]
    assert admission_order(world) == ["large", "small"]


def test_first_come_first_served_ignores_priorities() -> None:
    world = World(max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 0), ("c", -5)):
        world.add(name, range(4), max_tokens=2, priority=priority)
    assert admission_order(world) == ["a", "b", "c"]


def test_the_priority_policy_serves_the_lowest_number_first_and_ties_by_arrival() -> None:
    world = World(max_num_seqs=1, policy=Policy.PRIORITY)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -3), ("e", 0)):
        world.add(name, range(4), max_tokens=2, priority=priority)
    assert admission_order(world) == ["d", "b", "e", "a", "c"]


def test_a_class_adds_its_priority_to_the_requests() -> None:
    world = World(max_num_seqs=1, policy=Policy.PRIORITY, classes=(INTERACTIVE, BATCH))
    for name, priority, kind in (("a", 0, "batch"), ("b", 4, "default"), ("c", 6, "default")):
        world.add(name, range(4), max_tokens=2, priority=priority, request_class=kind)
    assert admission_order(world) == ["b", "a", "c"]


def test_under_priority_the_least_urgent_is_preempted_whenever_it_came() -> None:
    world = World(num_blocks=16, policy=Policy.PRIORITY)
    world.add("old", range(12), max_tokens=40, priority=1)
    world.add("urgent", range(50, 62), max_tokens=40, priority=0)
    victims = {
        event.request_id
        for _ in range(60)
        for event in world.turn()
        if type(event).__name__ == "SequencePreempted"
    }
    assert victims == {"old"}


STATES = CacheGroup(layers=(2,), kind=Recurrent(prompt_interval=4, decode_interval=4))


@pytest.mark.parametrize("num_blocks", range(5, 14))
@pytest.mark.parametrize("groups", [(FULL,), (FULL, STATES)], ids=["full", "full and recurrent"])
def test_a_victim_takes_what_was_planned_for_it_out_of_the_plan(
    groups: tuple[CacheGroup, ...], num_blocks: int
) -> None:
    pools = (num_blocks, 8)[: len(groups)]
    world = World(groups=groups, num_blocks=pools, max_model_len=20, policy=Policy.PRIORITY)
    world.add("patient", range(4), max_tokens=16, priority=1)
    for _ in range(4):
        world.turn()
    world.add("urgent", range(50, 54), max_tokens=16, priority=0)
    world.run()
    assert world.answer("patient").token_ids == oracle(range(4), 16)
    assert world.answer("urgent").token_ids == oracle(range(50, 54), 16)
    assert world.free_blocks == [*pools]
    for plan in world.runner.plans:
        gone = set(plan.released) - {entry.row for entry in plan.admitted}
        assert not gone & {update.row for update in plan.table_updates}


def test_a_class_at_its_bound_blocks_no_other() -> None:
    world = World(classes=(INTERACTIVE, BATCH))
    for number in range(3):
        world.add(f"batch{number}", range(4), max_tokens=6, request_class="batch")
    world.add("chat", range(4), max_tokens=6)
    world.turn()
    assert running(world) == ["batch0", "batch1", "chat"]
    assert world.scheduler.table.waiting.length("batch") == 1


def test_a_place_in_a_class_is_free_again_after_every_way_to_end() -> None:
    world = World(classes=(INTERACTIVE, BATCH))
    for number in range(4):
        world.add(f"b{number}", range(4), max_tokens=40, request_class="batch", deadline=1.0 + number)
    world.turn()
    assert running(world) == ["b0", "b1"]
    world.engine.abort("b0")
    world.turn()
    assert running(world) == ["b1", "b2"]
    world.clock.time = 2.0
    world.turn()
    assert running(world) == ["b2", "b3"]


def test_siblings_wait_until_the_prompt_is_computed_and_then_share_it() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("a", range(24), n=3, max_tokens=4)
    for _ in range(3):
        world.turn()
        assert running(world) == ["a"]
    world.turn()
    assert running(world) == ["a", "a", "a"]
    assert [len(plan.admitted) for plan in world.runner.plans] == [1, 0, 0, 2]


def test_a_preempted_sibling_resumes_before_its_younger_ones_are_admitted() -> None:
    world = World(num_blocks=24, max_num_seqs=8)
    world.add("a", range(5), n=8, max_tokens=40)
    seen: list[tuple[int, bool]] = []
    while world.engine.has_work:
        seen += [
            (event.index, event.resumed) for event in world.turn() if isinstance(event, SequenceAdmitted)
        ]
        line = world.scheduler.table.waiting.head(lambda name: True)
        waiting = [
            seq
            for family in world.scheduler.table.requests.values()
            for seq in family
            if seq.phase in {Phase.WAITING, Phase.PREEMPTED}
        ]
        if waiting:
            assert line is min(waiting, key=lambda seq: seq.index)
    assert any(resumed for _, resumed in seen)


@pytest.mark.parametrize(("watermark", "admitted"), [(0.5, ["first"]), (0.0, ["first", "second"])])
def test_admission_leaves_the_watermark_free_but_never_starves_the_first(
    watermark: float, admitted: list[str]
) -> None:
    world = World(num_blocks=20, watermark=watermark)
    world.add("first", range(60), max_tokens=4)
    world.add("second", range(100, 108), max_tokens=4)
    world.turn()
    world.turn()
    assert running(world) == admitted
    world.run()


def test_a_preempted_sequence_comes_back_before_those_behind_it() -> None:
    world = World(num_blocks=16)
    world.add("old", range(12), max_tokens=40)
    world.add("young", range(50, 62), max_tokens=40)
    while not world.preemptions:
        world.turn()
    world.add("late", range(3), max_tokens=2)
    order = [
        event.request_id for _ in range(80) for event in world.turn() if isinstance(event, SequenceAdmitted)
    ]
    assert order[0] == "young"
    assert "late" in order


def test_admission_is_reported_before_the_token_it_leads_to() -> None:
    world = World()
    world.add("a", range(4), max_tokens=2)
    events = world.turn()
    assert [type(event) for event in events] == [SequenceAdmitted, TokensGenerated]


def test_a_sequence_finished_twice_is_finished_once() -> None:
    world = World()
    world.add("a", range(4))
    (sequence,) = world.scheduler.table.requests["a"]
    for _ in range(2):
        world.scheduler.table.finish(sequence, FinishReason.ABORT)
    assert world.scheduler.counters.finished[FinishReason.ABORT] == 1
    assert sequence.phase is Phase.FINISHED
    with pytest.raises(AssertionError):
        sequence.move(Trigger.ADMIT)


def test_depth_is_at_least_one() -> None:
    with pytest.raises(BadValueError, match="depth"):
        World(depth=0)
