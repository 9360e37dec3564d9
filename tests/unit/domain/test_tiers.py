"""Blocks in host memory and in a directory: answers are what they were without, and no copy is trusted before it is done."""

from __future__ import annotations

import functools
import random
from collections import Counter
from typing import Any

import pytest

from nanoserve.domain.engine import HAND_OVER_SECONDS
from nanoserve.domain.kv.host_tier import HostTier, SlotAccountingError
from nanoserve.ports.errors import BadValueError, StepFailedError
from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan
from tests.unit.domain.faults import Fault
from tests.unit.domain.kv_event_reader import KVEventReader, check_reader
from tests.unit.domain.late_copies import LateDirectory, LateRunner
from tests.unit.domain.world import FULL, RecordingRunner, World, oracle


def small_world(dice: random.Random | None = None, **settings: Any) -> World:
    """20 blocks on the device, 60 in host memory."""
    runner = RecordingRunner if dice is None else functools.partial(LateRunner, dice=dice)
    defaults = {"num_blocks": 20, "host_slots": 60, "min_offload_tokens": 8, "max_model_len": 64}
    return World(runner=runner, **(defaults | settings))


def counts(world: World, tier: str = "host") -> Any:
    return world.engine.state().tiers[tier]


def displace(world: World, name: str = "other") -> None:
    """Let the device forget what it has."""
    for number in range(2):
        world.add(f"{name}{number}", range(500 + 60 * number, 555 + 60 * number), max_tokens=1)
        world.run()


def check_random_load(seed: int) -> Counter[str]:
    """Random requests over few prefixes, some aborted, some steps failing; all texts are the model's own."""
    dice = random.Random(seed)
    world = small_world(
        dice,
        depth=dice.randint(1, 3),
        groups=(dice.choice((FULL, CacheGroup(layers=(0,), kind=Latent()))),),
        num_blocks=dice.choice((16, 20, 30)),
        host_slots=dice.choice((3, 20, 60)),
        directory=functools.partial(LateDirectory, dice=dice) if dice.random() < 0.6 else None,
        isolated=(isolated := dice.random() < 0.3),
        kv_events=(reader := KVEventReader(4, isolated=isolated)),
    )
    trees = [[dice.randrange(1000) for _ in range(48)] for _ in range(4)]
    asked = {}
    for number in range(24):
        tree = dice.choice(trees)
        prompt = [*tree[: dice.randint(0, 48)], *(dice.randrange(1000) for _ in range(dice.randint(1, 6)))]
        salt = dice.choice(("", "", "", "salt"))
        asked[f"r{number}"] = prompt
        world.add(f"r{number}", prompt, max_tokens=dice.randint(1, 8), cache_salt=salt)
        for _ in range(dice.randrange(7)):
            world.turn()
        if dice.random() < 0.1:
            world.engine.abort(f"r{dice.randrange(number + 1)}")
        if dice.random() < 0.03:
            world.engine.forget_prefixes()
        if dice.random() < 0.1:
            world.runner.fail(dice.choice(list(Fault)), StepFailedError("lost", dice.choice(((), (0,)))))
    world.runner.heal()
    world.run()
    for (name, _), answer in world.answers.items():
        said = oracle(asked[name], len(answer.token_ids))
        assert answer.token_ids == said
        assert answer.reason in {FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR}
    cache = world.scheduler.cache
    assert cache.tiers is not None
    check_reader(reader, cache)
    return Counter(loaded=counts(world).loaded, read=world.directory.num_read if world.directory else 0)


def test_random_loads_say_what_they_would_say_without() -> None:
    seen = sum((check_random_load(seed) for seed in range(20)), Counter[str]())
    assert seen["loaded"] > 100
    assert seen["read"] > 10


@pytest.mark.slow
def test_a_thousand_random_loads() -> None:
    for seed in range(1000, 2000):
        check_random_load(seed)


class Will(random.Random):
    """Dice that fall as a test wants: at 0.0 everything happens at once, at 1.0 nothing does."""

    value = 1.0

    def random(self) -> float:
        return self.value

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)  # defined here, or `sample` would wait for `random` to be below 1


def held_world(**settings: Any) -> tuple[World, Will]:
    """A world whose copies are done when its will is 0.0."""
    will = Will(0)
    return small_world(will, **settings), will


def carried(plans: list[StepPlan], kind: str) -> list[int]:
    """The steps with stores or loads."""
    return [plan.step for plan in plans if getattr(plan, kind)]


PROMPT = range(100, 140)


def test_what_the_device_has_displaced_comes_back_from_host_memory() -> None:
    world = small_world()
    world.add("first", PROMPT)
    world.run()
    displace(world)
    world.add("again", PROMPT)
    assert world.admissions("again") == [36]
    assert world.answer("again").token_ids == oracle(PROMPT, 8)
    assert (counts(world).loaded, counts(world).capacity) == (9, 60)
    assert world.engine.state().prefix_hits == 36


def test_a_block_is_stored_when_the_step_that_wrote_it_has_come_home() -> None:
    world = small_world(depth=2)
    world.add("a", PROMPT, max_tokens=12)
    world.run()
    plans = world.runner.plans
    assert [plan.num_tokens for plan in plans[:2]] == [32, 8]
    assert carried(plans, "stores") == [3, 4]
    assert [len(plan.stores) for plan in plans[2:4]] == [8, 2]


def test_blocks_on_their_way_out_are_held_and_their_slots_are_not_found() -> None:
    world, will = held_world(num_blocks=24)
    world.add("a", PROMPT, max_tokens=3)
    while world.engine.request_ids():
        world.turn()
    assert world.free_blocks == [24 - 10]
    world.scheduler.cache.allocators[0].forget()  # the device alone
    world.add("b", PROMPT, max_tokens=3)
    while world.engine.request_ids():
        world.turn()
    assert world.answer("b").token_ids == oracle(PROMPT, 3)
    assert carried(world.runner.plans, "loads") == []
    will.value = 0.0
    world.run()
    assert world.free_blocks == [24]
    assert (counts(world).stored, counts(world).held) == (10, 10)


def handing_world() -> tuple[World, Will, LateDirectory]:
    """A world that hands over to a directory, which does as its will says."""
    will = Will(0)
    world = small_world(will, directory=functools.partial(LateDirectory, dice=will), hands_over=True)
    return world, will, world.directory


def end_of(world: World) -> FinishReason | None:
    return world.answers[("a", 0)].reason


def world_behind(directory: LateDirectory, will: Will) -> World:
    """An engine that finds what another one has left in its directory, and has the same prompt."""
    decoding = small_world(will, directory=functools.partial(LateDirectory, dice=will))
    decoding.directory.blocks = directory.blocks
    decoding.add("a", PROMPT)
    return decoding


def test_the_step_log_has_an_end_once_though_its_report_waits() -> None:
    world, will, _ = handing_world()
    recorder = world.engine.record()
    world.add("a", PROMPT, max_tokens=1)
    for value in (1.0, 0.6):
        will.value = value
        for _ in range(4):
            world.turn()
    assert end_of(world) is None
    world.engine.record()
    will.value = 0.0
    world.run()
    assert [len(each.ended) for each in recorder.take() if each.ended] == [1]


def test_an_answer_ends_when_the_blocks_of_its_prompt_can_be_read_by_another_engine() -> None:
    world, will, directory = handing_world()
    world.add("a", PROMPT, max_tokens=1)
    for value in (1.0, 0.6):  # on their way to host memory, then to the directory
        will.value = value
        for _ in range(6):
            world.turn()
        assert world.engine.request_ids() == []
        assert world.engine.has_work
        assert end_of(world) is None
        assert not directory.blocks
    will.value = 0.0
    world.run()
    assert end_of(world) is FinishReason.LENGTH
    assert len(directory.blocks) == 10

    decoding = world_behind(directory, will)
    assert decoding.admissions("a") == [36]
    assert decoding.answer("a").token_ids == oracle(PROMPT, 8)


def test_where_not_all_blocks_find_room_in_the_directory_those_of_the_beginning_do() -> None:
    world, will, directory = handing_world()
    will.value, directory.room = 0.0, 4
    world.add("a", PROMPT, max_tokens=1)
    world.run()
    assert len(directory.blocks) == 4

    decoding = world_behind(directory, will)
    assert decoding.admissions("a") == [16]


def test_an_end_does_not_wait_for_ever() -> None:
    world, _, directory = handing_world()
    world.add("a", PROMPT, max_tokens=1)
    while world.engine.request_ids():
        world.turn()
    world.turn()
    assert end_of(world) is None
    world.clock.time += HAND_OVER_SECONDS + 1
    world.turn()
    assert end_of(world) is FinishReason.LENGTH
    assert not directory.blocks


def test_a_sequence_that_waits_for_blocks_holds_up_no_other() -> None:
    world, will = held_world()
    will.value = 0.0
    world.add("a", PROMPT)
    world.run()
    displace(world)
    will.value = 1.0
    world.add("waits", PROMPT)
    world.add("goes", range(20))
    for _ in range(12):
        world.turn()
    assert world.answer("goes").reason is FinishReason.LENGTH
    assert world.answer("waits").token_ids == []
    will.value = 0.0
    world.run()
    assert world.answer("waits").token_ids == oracle(PROMPT, 8)


def test_blocks_come_in_for_no_more_sequences_than_rows_are_free() -> None:
    world, will = held_world(max_num_seqs=1)
    will.value = 0.0
    world.add("a", PROMPT)
    world.run()
    displace(world)
    will.value = 1.0
    for name in ("b", "c", "d"):
        world.add(name, PROMPT)
    for _ in range(4):
        world.turn()
    tiers = world.scheduler.cache.tiers
    assert tiers is not None
    assert tiers.num_waiting == 1
    will.value = 0.0
    world.run()
    assert {name: world.answer(name).token_ids for name in ("b", "c", "d")} == dict.fromkeys(
        ("b", "c", "d"), oracle(PROMPT, 8)
    )


@pytest.mark.parametrize("ends", ["abort", "deadline"])
def test_a_sequence_may_end_while_its_blocks_come_in(ends: str) -> None:
    world, will = held_world(num_blocks=20)
    will.value = 0.0
    world.add("a", PROMPT)
    world.run()
    displace(world)
    will.value = 1.0
    world.add("b", PROMPT, deadline=world.clock.time + 0.01 if ends == "deadline" else None)
    for _ in range(4):
        world.turn()
    world.engine.abort("b") if ends == "abort" else setattr(world.clock, "time", world.clock.time + 1)
    world.add("c", PROMPT)
    world.turn()
    assert world.answer("b").reason in {FinishReason.ABORT, FinishReason.TIMEOUT}
    will.value = 0.0
    world.run()
    assert world.answer("c").token_ids == oracle(PROMPT, 8)
    assert counts(world).loaded == 9
    assert world.free_blocks == [20]


def test_a_failed_step_forgets_what_it_was_to_store() -> None:
    world = small_world()
    world.add("a", PROMPT, max_tokens=3)
    while not world.runner.plans or not world.runner.plans[-1].stores:
        world.runner.fail(Fault.COLLECT_LOST) if len(world.runner.plans) == 1 else world.runner.heal()
        world.turn()
    failed = world.runner.plans[-1]
    assert world.answer("a").reason is FinishReason.ERROR
    assert counts(world).held == 0
    world.add("b", PROMPT, max_tokens=3)
    world.run()
    assert next(plan for plan in world.runner.plans if plan.step > failed.step).starts_anew
    assert world.answer("b").token_ids == oracle(PROMPT, 3)


def test_a_slot_that_a_lost_step_may_still_write_is_not_used_before_the_runner_has_started_anew() -> None:
    will = Will(0)
    will.value = 0.0
    directory = functools.partial(LateDirectory, dice=will)
    former = small_world(directory=directory)
    former.add("a", PROMPT)
    former.run()
    assert former.scheduler.cache.tiers is not None
    former.scheduler.cache.tiers.poll()
    world = small_world(directory=directory)
    world.directory.blocks.update(former.directory.blocks)
    assert len(world.directory.blocks) == 10
    world.add("lost", range(300, 332), max_tokens=3)
    world.turn()
    world.runner.fail(Fault.SUBMIT_KEPT)
    world.turn()
    assert world.answer("lost").reason is FinishReason.ERROR
    world.add("b", PROMPT)
    world.run()
    assert world.directory.num_read == 9
    assert world.answer("b").token_ids == oracle(PROMPT, 8)


def test_salted_prompts_share_no_slots() -> None:
    world = small_world()
    world.add("a", PROMPT, cache_salt="mine")
    world.run()
    displace(world)
    for name, salt in (("other", ""), ("theirs", "theirs")):
        world.add(name, PROMPT, cache_salt=salt)
        assert world.admissions(name) == [0]


def test_a_short_stretch_is_computed_again() -> None:
    world = small_world(min_offload_tokens=37)
    world.add("a", PROMPT)
    world.run()
    displace(world)
    world.add("b", PROMPT)
    assert world.admissions("b") == [0]


def test_forgotten_prefixes_are_forgotten_in_all_tiers() -> None:
    world = small_world()
    world.add("a", PROMPT)
    world.run()
    world.engine.forget_prefixes()
    world.add("b", PROMPT)
    assert world.admissions("b") == [0]


@pytest.mark.parametrize(
    "groups",
    [
        (CacheGroup(layers=(0,), kind=Window(8)),),
        (FULL, CacheGroup(layers=(2,), kind=Window(8))),
        (FULL, CacheGroup(layers=(2,), kind=Recurrent())),
    ],
)
def test_what_cannot_be_carried_whole_is_refused_by_name(groups: tuple[CacheGroup, ...]) -> None:
    with pytest.raises(BadValueError, match=r"kv_offload_memory.*(window|state)"):
        small_world(groups=groups)


def test_without_prefix_caching_there_is_nothing_to_keep() -> None:
    with pytest.raises(BadValueError, match="needs prefix caching"):
        small_world(prefix_caching=False)


def test_slots_are_given_away_least_recently_used_first_and_not_while_in_use() -> None:
    tier = HostTier(2)
    first, second = tier.reserve(1), tier.reserve(2)
    assert first is not None
    assert second is not None
    assert tier.reserve(3) is None
    for slot in (first, second):
        assert tier.complete(slot, is_good=True)
    tier.touch(1)
    assert tier.reserve(3) == second
    tier.pin(first)
    assert tier.reserve(4) is None
    tier.forget()
    tier.unpin(first)
    assert tier.reserve(4) == first
    assert not tier.complete(second, is_good=True)
    with pytest.raises(SlotAccountingError):
        tier.unpin(first)
    with pytest.raises(SlotAccountingError):
        tier.complete(second, is_good=True)
