"""What prefix caching saves where prompts share a beginning, and what it costs where they do not: counts of tokens and steps."""

from __future__ import annotations

import math

import pytest

from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from tests.unit.domain.world import FULL, VOCAB, World

BLOCK = 16
WIDE = CacheGroup(layers=(2,), kind=Window(128))
LATENT = CacheGroup(layers=(3,), kind=Latent())
STATE = CacheGroup(layers=(4,), kind=Recurrent())
KINDS = {
    "full": (FULL,), "latent": (LATENT,), "window": (FULL, WIDE), "state": (FULL, STATE), "all": (FULL, WIDE, LATENT, STATE)
}  # fmt: skip
ROWS = 16


def computed(world: World) -> int:
    """Prompt tokens since the last call."""
    total = sum(chunk.length for plan in world.runner.plans for chunk in plan.chunks)
    world.runner.plans.clear()
    return total


@pytest.mark.parametrize("rest", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_shared_8k_prefix_no_more_than_a_block_and_the_rest_is_computed(
    kind: str, rest: int
) -> None:
    shared = [number % 997 for number in range(8192)]
    world = World(
        groups=KINDS[kind],
        max_num_batched_tokens=2048,
        max_model_len=8400,
        block_size=BLOCK,
        num_blocks=1200,
    )
    world.add("first", [*shared, 1, 2, 3], max_tokens=1)
    world.run()
    assert computed(world) == len(shared) + 3
    world.add("second", [*shared, *[5] * rest], max_tokens=1)
    world.run()
    assert computed(world) <= BLOCK + rest


def steps(kind: str, count: int, length: int, budget: int, *, caching: bool) -> int:
    """Of prompts of which no two begin alike."""
    world = World(
        groups=KINDS[kind],
        prefix_caching=caching,
        max_num_batched_tokens=budget,
        max_num_seqs=ROWS,
        max_model_len=length + 20,
        block_size=BLOCK,
        num_blocks=1200,
        depth=2,
    )
    for number in range(count):
        prompt = [(7 * number + 13 * place + number * place) % VOCAB for place in range(length)]
        world.add(str(number), prompt, max_tokens=16)
    world.run()
    return len(world.runner.plans)


@pytest.mark.parametrize(
    ("count", "length", "budget"), [(1, 500, 512), (8, 500, 512), (32, 330, 512), (20, 90, 64)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_share_nothing_cost_no_step_more(
    kind: str, count: int, length: int, budget: int
) -> None:
    """But where states are kept one for each crowd: the chunk of a prompt ends where its last snapshot is taken."""
    more = steps(kind, count, length, budget, caching=True) - steps(
        kind, count, length, budget, caching=False
    )
    assert more <= (math.ceil(count / ROWS) if STATE in KINDS[kind] else 0)
