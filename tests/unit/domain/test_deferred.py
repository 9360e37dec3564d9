"""What can wait: deferred sequences fill what others leave, come behind them in every step, and make way for them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import Policy, RequestClass
from nanoserve.domain.scheduling.prompt_shares import AFTERWARDS, DEFERRED_CHUNK
from nanoserve.ports.events import SequenceAdmitted, SequencePreempted
from nanoserve.ports.model_spec import CacheGroup, CacheKind, Full, Latent, Recurrent, Window
from nanoserve.ports.request import DEFERRED_CLASS
from tests.unit.domain.world import FULL, World, oracle

STATE = CacheGroup(layers=(2,), kind=Recurrent())
CLASSES = (RequestClass(), RequestClass(name=DEFERRED_CLASS))


def running(world: World) -> list[str]:
    return [sequence.request.request_id for sequence in world.scheduler.table.rows.running]


@pytest.mark.parametrize("policy", Policy)
def test_others_come_first_whenever_they_came(policy: Policy) -> None:
    world = World(classes=CLASSES, max_num_seqs=1, policy=policy)
    world.add("line", range(4), max_tokens=2, request_class=DEFERRED_CLASS, priority=-9)
    world.add("chat0", range(10, 14), max_tokens=2, priority=9)
    world.add("chat1", range(20, 24), max_tokens=2)
    admitted = []
    while world.engine.has_work:
        admitted += [each.request_id for each in world.turn() if isinstance(each, SequenceAdmitted)]
    assert admitted[-1] == "line"
    assert sorted(admitted[:-1]) == ["chat0", "chat1"]


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_are_given_back_to_others_and_the_answers_are_the_same(depth: int) -> None:
    world = World(classes=CLASSES, max_num_seqs=3, depth=depth)
    for number in range(3):
        world.add(f"line{number}", range(number, number + 4), max_tokens=30, request_class=DEFERRED_CLASS)
    for _ in range(5):
        world.turn()
    assert running(world) == ["line0", "line1", "line2"]
    for number in range(2):
        world.add(f"chat{number}", range(50 + number, 54 + number), max_tokens=10)
    admitted = [each.request_id for each in world.turn() if isinstance(each, SequenceAdmitted)]
    assert admitted == ["chat0", "chat1"]
    assert running(world) == ["line0", "chat0", "chat1"]
    world.run()
    for number in range(3):
        assert world.answer(f"line{number}").token_ids == oracle(range(number, number + 4), 30)
    for number in range(2):
        assert world.answer(f"chat{number}").token_ids == oracle(range(50 + number, 54 + number), 10)


def test_blocks_are_given_back_to_others_too() -> None:
    world = World(classes=CLASSES, num_blocks=16)
    world.add("line0", range(20), max_tokens=12, request_class=DEFERRED_CLASS)
    world.add("line1", range(100, 120), max_tokens=12, request_class=DEFERRED_CLASS)
    for _ in range(3):
        world.turn()
    assert running(world) == ["line0", "line1"]
    world.add("chat", range(200, 224), max_tokens=8)
    events = world.turn()
    assert [each.request_id for each in events if isinstance(each, SequencePreempted)] == ["line1"]
    assert running(world) == ["line0", "chat"]
    world.run()
    assert world.answer("chat").token_ids == oracle(range(200, 224), 8)
    assert world.answer("line1").token_ids == oracle(range(100, 120), 12)


def test_a_prompt_of_others_is_computed_before_one_that_has_begun() -> None:
    world = World(classes=CLASSES, max_num_batched_tokens=8)
    world.add("line", range(40), max_tokens=2, request_class=DEFERRED_CLASS)
    world.turn()
    world.add("chat", range(50, 62), max_tokens=2)
    plans = len(world.runner.plans)
    world.turn()
    world.turn()
    (line, chat) = world.scheduler.table.rows.running
    chunks = [[(each.row, each.length) for each in plan.chunks] for plan in world.runner.plans[plans:]]
    assert chunks == [[(chat.row, 8)], [(chat.row, 4), (line.row, 4)]]
    world.run()
    assert world.answer("line").token_ids == oracle(range(40), 2)


@pytest.mark.parametrize("groups", [(FULL,), (STATE,), (FULL, STATE)])
def test_a_prompt_of_others_waits_for_no_deferred_one_that_begins_alike(
    groups: tuple[CacheGroup, ...],
) -> None:
    world = World(classes=CLASSES, groups=groups, max_num_batched_tokens=8)
    world.add("line", range(40), max_tokens=2, request_class=DEFERRED_CLASS)
    world.turn()
    world.add("chat", range(38), max_tokens=2)
    world.turn()
    assert running(world) == ["line", "chat"]
    world.run()
    assert world.answer("line").token_ids == oracle(range(40), 2)
    assert world.answer("chat").token_ids == oracle(range(38), 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", [Full(), Window(50), Latent()])
def test_a_prompt_that_others_overtake_goes_on_behind_what_they_have_computed(
    kind: CacheKind, depth: int
) -> None:
    """Nobody computes the beginning again, however far it had come by itself."""
    beginning = list(range(100, 500))
    for turns in (1, 3, 6):
        groups = (FULL, CacheGroup(layers=(2,), kind=kind))
        settings: dict[str, Any] = {"max_num_batched_tokens": 48, "num_blocks": 600, "max_model_len": 500}
        world = World(groups=groups, classes=CLASSES, depth=depth, **settings)
        prompts = {name: [*beginning, *range(number, number + 6)] for number, name in enumerate("abcdef")}
        for name in "abc":
            world.add(name, prompts[name], request_class=DEFERRED_CLASS, max_tokens=4)
        for _ in range(turns):
            world.turn()
        for name in "def":
            world.add(name, prompts[name], max_tokens=4)
        world.run()
        window = 50 if isinstance(kind, Window) else None
        assert sum(chunk.length for plan in world.runner.plans for chunk in plan.chunks) == 400 + 6 * 6
        assert {each: world.answer(each).token_ids for each in prompts} == {
            each: oracle(prompt, 4, window=window) for each, prompt in prompts.items()
        }


def test_nothing_deferred_is_admitted_while_another_waits_for_blocks() -> None:
    world = World(classes=CLASSES, num_blocks=16)
    world.add("first", range(40), max_tokens=8)
    for _ in range(3):
        world.turn()
    world.add("large", range(100, 140), max_tokens=8)
    world.add("line", range(200, 202), max_tokens=2, request_class=DEFERRED_CLASS)
    for _ in range(3):
        world.turn()
        assert running(world) == ["first"]
    world.run()


def test_beside_answers_of_others_there_are_few_until_these_have_ended_for_a_moment() -> None:
    world = World(classes=CLASSES, max_num_seqs=4, deferred_rows=1)
    for number in range(3):
        world.add(f"line{number}", range(number, number + 4), max_tokens=20, request_class=DEFERRED_CLASS)
    for _ in range(5):
        world.turn()
    world.add("chat", range(50, 54), max_tokens=6)
    world.turn()
    assert running(world) == ["line0", "chat"]
    while "chat" in running(world):
        assert running(world) == ["line0", "chat"]
        world.turn()
    world.turn()
    assert running(world) == ["line0"]
    world.clock.time += AFTERWARDS
    world.turn()
    assert sorted(running(world)) == ["line0", "line1", "line2"]
    world.run()
    for number in range(3):
        assert world.answer(f"line{number}").token_ids == oracle(range(number, number + 4), 20)
    assert world.answer("chat").token_ids == oracle(range(50, 54), 6)


def test_beside_answers_of_others_prompts_go_on_slowly() -> None:
    longer = 2 * DEFERRED_CHUNK
    most = 4 * DEFERRED_CHUNK
    world = World(
        classes=CLASSES, deferred_rows=2, max_model_len=most, max_num_batched_tokens=most, num_blocks=400
    )
    world.add("line", range(longer), max_tokens=2, request_class=DEFERRED_CLASS)
    world.add("chat", range(900, 908), max_tokens=4)
    world.run()
    chunks = [[each.length for each in plan.chunks] for plan in world.runner.plans if plan.chunks]
    assert chunks == [[8], [DEFERRED_CHUNK], [DEFERRED_CHUNK]]
    world.clock.time += AFTERWARDS
    world.add("line2", range(500, 500 + longer), max_tokens=2, request_class=DEFERRED_CLASS)
    plans = len(world.runner.plans)
    world.run()
    assert [each.length for each in world.runner.plans[plans].chunks] == [longer]


@pytest.mark.parametrize("seed", range(20))
def test_no_deferred_sequence_is_admitted_while_another_one_stands_in_line(seed: int) -> None:
    """Random traffic; in each plan, too, the chunks of others come first."""
    dice = random.Random(seed)
    world = World(
        classes=CLASSES,
        max_num_seqs=4,
        num_blocks=24,
        max_num_batched_tokens=12,
        depth=1 + seed % 2,
        deferred_rows=None if seed % 3 else 1,
    )
    waiting = world.scheduler.table.waiting
    for number in range(60):
        kind = dice.choice(["default", DEFERRED_CLASS, DEFERRED_CLASS])
        prompt = [dice.randrange(1000) for _ in range(dice.randint(1, 20))]
        world.add(f"{kind}{number}", prompt, max_tokens=dice.randint(1, 12), request_class=kind)
        for _ in range(dice.randint(0, 3)):
            before = {each.name: waiting.length(each.name) for each in CLASSES}
            events = world.turn()
            admitted = [each.request_id for each in events if isinstance(each, SequenceAdmitted)]
            deferred = [name.startswith(DEFERRED_CLASS) for name in admitted]
            assert deferred == sorted(deferred)
            if any(deferred):
                assert deferred.count(False) == before["default"]
    world.run()
