"""What the control plane decides is written down: plans, step logs and answers of random loads, as digests.

A change that is meant to keep behaviour keeps every digest; one that is meant to change it says so by a new digest
(`python -m tests.unit.domain.test_recorded_plans` records them). Fields that a step leaves empty are no part of a digest.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from nanoserve.domain.scheduling.limits import Policy, RequestClass
from nanoserve.ports.errors import RequestRefusedError
from nanoserve.ports.model_spec import CacheGroup, Window
from nanoserve.ports.step import StepPlan
from tests.unit.domain.tokenizers import characters
from tests.unit.domain.world import FULL, World

LETTERS = characters("abcdefghijklmnopqrstuvwx")
NARROW = CacheGroup(layers=(2,), kind=Window(5))
WIDE = CacheGroup(layers=(3,), kind=Window(11))
CLASSES = (RequestClass(), RequestClass(name="batch", priority=2, max_running=2, max_waiting=7))

LOADS: dict[str, dict[str, Any]] = {
    "roomy": {"num_blocks": 64},
    "roomy, two in flight": {"num_blocks": 64, "depth": 2},
    "cramped": {"num_blocks": 12},
    "cramped, three in flight": {"num_blocks": 12, "depth": 3},
    "windows": {"num_blocks": 14, "groups": (NARROW, WIDE), "depth": 2},
    "full and window": {"num_blocks": 14, "groups": (FULL, NARROW)},
    "priorities": {"num_blocks": 14, "policy": Policy.PRIORITY, "classes": CLASSES, "depth": 2},
    "no prefix cache": {"num_blocks": 14, "prefix_caching": False},
    "small steps": {"num_blocks": 20, "max_num_batched_tokens": 5, "max_num_seqs": 5, "max_itl": 0.0005},
    "watermark": {"num_blocks": 16, "watermark": 0.2, "depth": 2},
}

RECORDED = pathlib.Path(__file__).with_name("recorded_plans.json")


def as_text(value: Any) -> str:
    """A value as text: classes by name, fields that hold nothing left out, so that new ones do not show."""
    if attrs.has(type(value)):
        fields = ((each.name, getattr(value, each.name)) for each in attrs.fields(type(value)))
        inside = ",".join(f"{name}={as_text(each)}" for name, each in fields if not _is_empty(name, each))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{as_text(each)}' for key, each in sorted(value.items()))}}}"
    return repr(value)


_USUAL = {
    "starts_anew": False,
    "routed_experts": False,
    "lora_slot": 0,
    "pools": False,
    "invariant": False,
    "unverified": 0,
    "width": 1,
    "drafts": True,
}


def _is_empty(name: str, value: object) -> bool:
    """`max_length` says again what the request did."""
    return name == "max_length" or value is None or value in ((), "", {}, []) or _USUAL.get(name) == value


def traffic(world: World, dice: random.Random) -> None:
    """Sixty requests, some of which share prefixes, are aborted or run out of time."""
    shared = [dice.randrange(24) for _ in range(40)]
    for number in range(60):
        prompt = [
            *shared[: dice.choice((0, 0, 4, 9, 16))],
            *(dice.randrange(24) for _ in range(dice.randint(1, 8))),
        ]
        fields: dict[str, Any] = {
            "n": dice.choice((1, 1, 1, 2, 3)),
            "max_tokens": dice.choice((1, 3, 9, None)),
            "seed": dice.randrange(6),
            "priority": dice.randint(-1, 1),
            "request_class": dice.choice(("default", "batch"))
            if len(world.limits.classes) > 1
            else "default",
            "cache_salt": dice.choice(("", "", "", "salt")),
            "eos": dice.choice(((), (3,), (3, 7))),
            "stop": dice.choice(((), (), ("ab", "c"))),
            "stream": dice.random() < 0.8,
            "prompt_logprobs": dice.choice((None, None, None, 0)),
            "deadline": world.clock.time + 0.02 if dice.random() < 0.1 else None,
        }
        try:
            world.add(f"r{number}", prompt, **fields)
        except RequestRefusedError:
            dice.random()
        if dice.random() < 0.15:
            world.engine.abort(f"r{dice.randrange(number + 1)}")
        for _ in range(dice.randrange(4)):
            world.turn()
    world.run()


def digest(load: dict[str, Any]) -> str:
    """Of every plan, every turn of the step log and every answer."""
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 16, "max_model_len": 32, "vocab_size": 24}
    world = World(tokenizer=LETTERS, **(settings | load))
    recorder = world.engine.record(LETTERS)
    traffic(world, random.Random(11))
    plans: Iterable[StepPlan] = world.runner.plans
    parts = [*plans, *recorder.take(), *world.answers.values()]
    return hashlib.sha256("\n".join(map(as_text, parts)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", LOADS)
def test_plans_step_logs_and_answers_are_those_recorded(name: str) -> None:
    assert digest(LOADS[name]) == json.loads(RECORDED.read_text())[name]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: digest(load) for name, load in LOADS.items()}, indent=1) + "\n")
