"""Adapters by name and in slots: who has which, what makes room, and that nothing stays behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError, UnknownModelError
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan
from tests.fakes.memory_runner import BrokenPlanError
from tests.unit.domain.faults import Fault
from tests.unit.domain.strict_runner import HeldLoras
from tests.unit.domain.world import RecordingRunner, World, oracle


class SlotRunner(RecordingRunner):
    """Checks that slots are filled before rows use them, and never while one does; notes the adapter of each row."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.store_of_loras: HeldLoras | None = None
        self.world: World | None = None
        self.filled: dict[int, bytes] = {}
        self.used: dict[int, int] = {}
        self.computed: dict[int, set[int]] = {}
        self.seen: list[bytes] = []

    def keep(self, plan: StepPlan) -> None:
        """What a plan does to slots and rows; of steps in flight too, since these come before it."""
        for row in plan.released:
            self.used.pop(row, None)
        for load in plan.lora_loads:
            assert self.store_of_loras is not None
            if not self.store_of_loras.held[load.digest]:
                self.broken = BrokenPlanError("an adapter is loaded whose numbers are gone")
            assert self.world is not None
            # What a failure has made the engine forget does not count, though a device may still compute it.
            flights = [each.plan.step for each in self.world.scheduler.flights if each.plan is not plan]
            in_flight = [slot for step in flights for slot in self.computed[step]]
            if load.slot in [*self.used.values(), *in_flight]:
                self.broken = BrokenPlanError("a slot is filled while a row uses it")
            self.filled[load.slot] = load.digest
        for each in plan.admitted:
            if each.lora_slot:
                self.used[each.row] = each.lora_slot
                self.seen.append(self.filled[each.lora_slot])
        computed = [each.row for each in plan.chunks] + list(plan.decoding)
        self.computed[plan.step] = {self.used.get(row, 0) for row in computed}
        super().keep(plan)


def make_world(slots: int, **settings: Any) -> tuple[World, HeldLoras, SlotRunner]:
    store = HeldLoras()
    world = World(runner=SlotRunner, lora_store=store, max_loras=slots, **settings)
    runner = world.runner
    assert isinstance(runner, SlotRunner)
    runner.store_of_loras, runner.world = store, world
    return world, store, runner


def load(world: World, name: str, folder: str | None = None) -> None:
    world.engine.name_lora(name, world.engine.read_lora(folder or name))


def test_a_slot_is_filled_by_the_step_before_the_one_that_uses_it() -> None:
    world, _, runner = make_world(2)
    load(world, "a")
    world.add("r", [1, 2, 3], lora="a")
    world.run()
    first, second = runner.plans[:2]
    assert [each.digest for each in first.lora_loads] == [b"a"]
    assert not first.num_tokens
    assert [each.lora_slot for each in second.admitted] == [first.lora_loads[0].slot]
    world.add("again", [1, 2, 3], lora="a")
    world.run()
    assert world.scheduler.table.loras.loads == 1


def test_loads_go_along_with_steps_of_others_and_steady_steps_say_nothing() -> None:
    world, _, runner = make_world(1)
    load(world, "a")
    world.add("base", [1, 2, 3], max_tokens=20)
    world.turn()
    world.add("r", [4, 5], lora="a", max_tokens=4)
    world.run()
    (filling,) = [plan for plan in runner.plans if plan.lora_loads]
    assert filling.decoding


@pytest.mark.parametrize("width", [1, 4])
def test_rows_have_their_blocks_after_steps_that_only_load_adapters_of_deterministic_ones(width: int) -> None:
    world, _, runner = make_world(1, max_width=width, max_num_seqs=1)
    for name in "ab":
        load(world, name)
    for number in range(9):
        world.add(f"r{number}", [1, 2, 3], lora="ab"[number % 2], max_tokens=1, deterministic=True)
    world.add("base", [5, 6], max_tokens=40)
    world.run()
    assert sum(not plan.num_tokens and bool(plan.lora_loads) for plan in runner.plans) == 9
    assert world.answer("base").token_ids == oracle([5, 6], 40)


def test_the_least_recently_used_makes_room_and_a_used_one_never() -> None:
    world, _, runner = make_world(2)
    for name in "abc":
        load(world, name)
    for name in "ab":
        world.add(name, [1, 2], lora=name, max_tokens=3)
        world.run()
    world.add("a2", [1, 2], lora="a", max_tokens=30)
    world.turn()
    world.add("c", [1, 2], lora="c", max_tokens=3)
    world.run()
    assert set(world.scheduler.table.loras.slots.values()) == {b"a", b"c"}
    assert runner.seen == [b"a", b"b", b"a", b"c"]


def test_who_comes_too_late_for_a_slot_waits_for_one() -> None:
    world, _, runner = make_world(1)
    for name in "ab":
        load(world, name)
    world.add("a", [1, 2], lora="a", max_tokens=5)
    world.add("b", [1, 2], lora="b", max_tokens=5)
    world.add("base", [1, 2], max_tokens=5)
    world.run()
    assert runner.seen == [b"a", b"b"]
    assert all(answer.reason is FinishReason.LENGTH for answer in world.answers.values())


@pytest.mark.parametrize("depth", [2, 3])
def test_a_slot_waits_for_the_steps_in_flight_of_a_row_that_has_ended(depth: int) -> None:
    world, _, runner = make_world(1, depth=depth)
    for name in "ab":
        load(world, name)
    world.add("a", [1, 2], lora="a", max_tokens=40)
    for _ in range(5):
        world.turn()
    world.engine.abort("a")
    world.add("b", [1, 2], lora="b", max_tokens=3)
    world.run()
    assert runner.seen == [b"a", b"b"]


def test_a_request_keeps_the_adapter_that_had_the_name_when_it_came() -> None:
    world, store, runner = make_world(2)
    load(world, "policy", "v1")
    world.add("old", [1, 2], lora="policy", max_tokens=9)
    for _ in range(3):
        world.turn()
    load(world, "policy", "v2")
    assert store.held == {b"v1": 1, b"v2": 1}
    world.add("new", [1, 2], lora="policy", max_tokens=2)
    world.run()
    assert runner.seen == [b"v1", b"v2"]
    assert +store.held == {b"v2": 1}
    world.engine.forget_lora("policy")
    assert not +store.held


def test_names_that_are_not_there_are_refused() -> None:
    world, _, _ = make_world(1)
    load(world, "a")
    with pytest.raises(UnknownModelError, match="no adapter 'b' is loaded; loaded: a"):
        world.add("r", [1], lora="b")
    with pytest.raises(UnknownModelError):
        world.engine.forget_lora("b")
    plain = World()
    with pytest.raises(BadValueError, match="set max_loras"):
        plain.engine.read_lora("a")
    assert not world.engine.has_work


def test_blocks_are_shared_only_under_the_same_numbers() -> None:
    world, _, _ = make_world(2)
    prompt = list(range(1, 14))
    for number, (name, folder, cached) in enumerate(
        [("a", "v1", 0), ("b", "v1", 12), ("a", "v2", 0), ("a", "v2", 12)]
    ):
        load(world, name, folder)
        world.add(f"r{number}", prompt, lora=name, max_tokens=2)
        assert world.admissions(f"r{number}") == [cached]
    world.add("base", prompt, max_tokens=2)
    assert world.admissions("base") == [0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_thousand_loads_and_unloads_under_load_leave_nothing_behind(depth: int) -> None:
    """Few slots, few blocks, aborts and failing steps; all counts are checked after every turn."""
    dice = random.Random(depth)
    world, store, runner = make_world(3, depth=depth, num_blocks=26, max_num_seqs=6)
    names: list[str] = []
    faults = list(Fault)
    for number in range(1000):
        if len(names) > 5 or (names and dice.random() < 0.3):
            world.engine.forget_lora(names.pop(dice.randrange(len(names))))
        # Half of the names are given anew while they are in use.
        name = dice.choice(names) if names and dice.random() < 0.5 else f"n{number}"
        load(world, name, f"v{dice.randrange(40)}")
        if name not in names:
            names.append(name)
        prompt = [dice.randrange(1, 5) for _ in range(dice.randint(1, 20))]
        lora = dice.choice([*names, ""])
        world.add(f"r{number}", prompt, lora=lora, max_tokens=dice.randint(1, 12), n=dice.choice((1, 1, 2)))
        if dice.random() < 0.1:
            world.engine.abort(f"r{dice.randrange(number + 1)}")
        if dice.random() < 0.02:
            runner.fail(dice.choice(faults))
        for _ in range(dice.randrange(6)):
            world.turn()
    runner.heal()
    world.run()
    loras = world.scheduler.table.loras
    assert world.preemptions > 50
    assert loras.loads > 200
    assert sum(store.held.values()) == len(names)
    for name in names:
        world.engine.forget_lora(name)
    assert not +store.held
    assert not loras.requests
    assert not loras.dropped
    assert loras.audit([], []) == ""
