"""A block that a fast step has filled gets its name once an invariant step has computed it again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanoserve.domain.invariants import audit
from nanoserve.domain.scheduling import verification
from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.step import Chunk, StepPlan, StepResult, accepted_length
from tests.fakes.memory_runner import expected_token
from tests.unit.domain.world import FULL, VOCAB, RecordingRunner, World, oracle

NARROW = CacheGroup(layers=(2,), kind=Window(5))
STATES = CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=8, decode_interval=4))


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_a_fast_step_has_filled_is_not_shared_before_it_is_verified(deterministic: bool) -> None:
    world = World(depth=1)
    prompt = [50, 51, 52]
    (token,) = oracle(prompt, 1)
    world.add("first", prompt, max_tokens=40, deterministic=deterministic)
    while not any(plan.decoding for plan in world.runner.plans):
        world.turn()
    world.add("second", [*prompt, token, 7, 8, 9], max_tokens=2, deterministic=deterministic)
    world.turn()
    world.turn()
    first, second = (chunk for plan in world.runner.plans for chunk in plan.chunks)
    assert (first.start, first.length) == (0, 3)
    assert second.start == (0 if deterministic else world.limits.block_size)
    world.run()
    assert world.answer("first").token_ids == oracle(prompt, 40)
    assert world.answer("second").token_ids == oracle([*prompt, token, 7, 8, 9], 2)


class Sceptical(RecordingRunner):
    """Finds that only the first of the tokens which a row has decoded is right, though the others would be again."""

    def verify(self, chunk: Chunk, mask: bytes | None, result: StepResult) -> int:
        row = self.rows[chunk.row]
        verified = len(row.token_ids) - chunk.unverified
        if not chunk.unverified:
            return super().verify(chunk, mask, result)
        result.token_ids.append(row.token_ids[verified])
        del row.token_ids[verified + 1 :], row.seen[verified:]
        row.num_computed = verified
        return 1


@pytest.mark.parametrize(
    ("runner", "rows", "windows"),
    [
        (RecordingRunner, 8, [4] * 7),
        (RecordingRunner, 1, [31]),
        (Sceptical, 1, [31, 23, 17, 12, 9, 6, 4, 3, 3]),
    ],
)
def test_few_tokens_are_decoded_at_once_by_many_rows_and_where_many_are_wrong(
    monkeypatch: pytest.MonkeyPatch, runner: type[RecordingRunner], rows: int, windows: list[int]
) -> None:
    monkeypatch.setattr(verification, "MOST_TOKENS", 40)
    world = World(runner=runner, max_num_batched_tokens=64, num_blocks=200)
    for number in range(rows):
        world.add(str(number), [50, number], max_tokens=40, deterministic=True)
    world.run()
    found = [max(each.unverified for each in plan.chunks) for plan in world.runner.plans if plan.invariant]
    assert found[1 : 1 + len(windows)] == windows
    assert all(world.answer(str(number)).token_ids == oracle([50, number], 40) for number in range(rows))


class Unsteady(RecordingRunner):
    """Draws another token for rows of `asking` seeds now and then in steps that are not invariant, and keeps of what is verified only what is right."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dice, self.asking = random.Random(5), set[int]()
        self.window: int | None = None

    def collect(self, ticket: StepPlan, /) -> StepResult:
        result = super().collect(ticket)
        for row in [self.rows[each] for each in ticket.decoding if not ticket.invariant]:
            if row.seed in self.asking and self.dice.random() < 0.2:
                row.token_ids[-1] = (row.token_ids[-1] + 1) % VOCAB
        return result

    def verify(self, chunk: Chunk, mask: bytes | None, result: StepResult) -> int:
        row = self.rows[chunk.row]
        verified = len(row.token_ids) - chunk.unverified
        decoded = row.token_ids[verified:]
        drawn = [
            expected_token(row.token_ids[: verified + ahead], row.seed, VOCAB, self.window)
            for ahead in range(len(decoded) + 1)
        ]
        gained = drawn[: accepted_length(decoded, drawn)]
        row.token_ids[verified:] = gained
        row.num_computed = len(row.token_ids) - 1
        del row.seen[row.num_computed :]
        result.token_ids.extend(gained)
        return len(gained)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_verified_early_takes_no_blocks_of_a_prompt_in_the_same_step(depth: int) -> None:
    """Others would find what that prompt was to write."""
    for turns in range(2, 7):
        for num_blocks in range(16, 26):
            world = World(num_blocks=num_blocks, block_size=1, depth=depth, most_unverified=5)
            world.add("first", range(4), max_tokens=12, deterministic=True)
            for _ in range(turns):
                world.turn()
            world.add("second", range(100, 108), max_tokens=5, deterministic=True)
            world.run()
            assert world.answer("first").token_ids == oracle(range(4), 12)
            assert world.answer("second").token_ids == oracle(range(100, 108), 5)


@pytest.mark.parametrize(("asking", "longest", "are_all"), [(1, 4, False), (2, 4, True), (2, 25, False)])
def test_all_steps_are_invariant_where_a_fifth_of_the_rows_asks_and_all_are_short(
    monkeypatch: pytest.MonkeyPatch, asking: int, longest: int, are_all: bool
) -> None:
    monkeypatch.setattr(verification, "SHORT", 24)
    world = World(invariant_decoding=True, num_blocks=100)
    prompts = [range(4)] * 7 + [range(longest)]
    for number, prompt in enumerate(prompts):
        world.add(str(number), prompt, max_tokens=20, deterministic=number < asking, seed=number)
    world.run()
    plans = [plan for plan in world.runner.plans if plan.num_tokens]
    assert all(plan.invariant for plan in plans) is are_all
    assert any(chunk.unverified for plan in plans for chunk in plan.chunks) is not are_all
    for number, prompt in enumerate(prompts):
        assert world.answer(str(number)).token_ids == oracle(prompt, 20, seed=number)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("asking", [0.15, 0.4, 0.9])
@pytest.mark.parametrize("groups", [(FULL,), (FULL, NARROW), (FULL, STATES)])
def test_answers_are_right_whoever_asks_and_whenever_all_steps_are_invariant(
    monkeypatch: pytest.MonkeyPatch, groups: tuple[CacheGroup, ...], asking: float, depth: int
) -> None:
    monkeypatch.setattr(verification, "SHORT", 12)
    dice = random.Random(f"{asking} {depth}")
    world: Any = World(
        runner=Unsteady,
        depth=depth,
        groups=groups,
        num_blocks=40,
        max_num_batched_tokens=14,
        most_unverified=5,
        invariant_decoding=True,
    )
    said = dict[str, list[int]]()
    world.runner.window = window = 5 if NARROW in groups else None
    for number in range(40):
        asks = dice.random() < (asking if number < 20 else 1 - asking)
        prompt = [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 12))]
        count = dice.randrange(1, 30)
        if asks:
            world.runner.asking.add(derive_seed(number, 0))
        world.add(str(number), prompt, max_tokens=count, deterministic=asks, seed=number)
        said[str(number)] = oracle(prompt, count, seed=number, window=window)
        for _ in range(dice.randrange(6)):
            world.turn()
        if not number % 9:
            world.engine.abort(str(number))
            said.pop(str(number))
    world.run()
    for name, tokens in said.items():
        assert world.answer(name).token_ids == tokens, name
    audit(world.scheduler)
    plans = world.runner.plans
    kinds = {(plan.invariant, bool(plan.chunks), bool(plan.decoding)) for plan in plans}
    assert kinds >= {(True, True, True), (True, False, True), (False, False, True)}
    assert any(chunk.unverified for plan in plans for chunk in plan.chunks) is (STATES not in groups)
