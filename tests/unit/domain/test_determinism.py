"""The same calls give the same plans, in every process."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

from nanoserve.domain.scheduling.limits import Policy
from nanoserve.ports.model_spec import CacheGroup, Window
from tests.unit.domain.world import FULL, World

ROOT = pathlib.Path(__file__).parents[3]


def plans(depth: int) -> str:
    """Random traffic in a cramped engine, as the text of all its plans and all its answers."""
    world = World(
        groups=(FULL, CacheGroup(layers=(2,), kind=Window(9))),
        depth=depth,
        num_blocks=26,
        policy=Policy.PRIORITY,
        watermark=0.1,
    )
    rng = random.Random(depth)
    for number in range(120):
        prompt = range(rng.randrange(3), rng.randrange(4, 30))
        stops = [rng.randrange(1000) for _ in range(40)]
        world.add(
            f"r{number}",
            prompt,
            seed=number,
            n=rng.choice([1, 1, 3]),
            max_tokens=rng.randrange(1, 40),
            priority=rng.randrange(3),
            cache_salt=rng.choice(["", "s"]),
            stop_token_ids=stops,
        )
        for _ in range(rng.randrange(4)):
            world.turn()
        if rng.random() < 0.1:
            world.engine.abort(f"r{rng.randrange(number + 1)}")
    world.run()
    assert world.preemptions > 10
    return repr(world.runner.plans) + repr(world.answers)


def test_plans_do_not_depend_on_the_process() -> None:
    code = "from tests.unit.domain.test_determinism import plans; print(hash('x')); print(plans(1), plans(2))"
    outputs = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout.split("\n", 1))
    (hash_one, plans_one), (hash_two, plans_two) = outputs
    assert hash_one != hash_two
    assert plans_one == plans_two
