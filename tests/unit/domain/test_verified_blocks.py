"""A block that a fast step has filled gets its name once an invariant step has computed it again."""

from __future__ import annotations

import pytest

from tests.unit.domain.world import World, oracle


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
