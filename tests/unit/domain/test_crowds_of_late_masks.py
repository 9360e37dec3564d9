"""Many answers whose masks are late again and again, beside all that may happen to them: each says what it would say alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import Policy
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.steering import PARTS, PauseMode
from tests.fakes.finite_grammars import KIND
from tests.unit.domain.faults import Fault
from tests.unit.domain.test_state_machine import GROUPS, EngineMachine
from tests.unit.domain.world import FULL

LANGUAGES = (
    "12 13 14 15 16 17 18 19 20 21",
    "6 2|6 8 9 6 8 9 6 8 9 6 8 9",
    "20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5|20 19 4",
)


def built(dice: random.Random) -> EngineMachine:
    machine, pick = EngineMachine(), dice.choice
    machine.build(
        groups=pick([(FULL,), (FULL,), *GROUPS]),
        slack=[dice.randrange(12) for _ in range(4)],
        depth=pick([1, 2, 2, 3]),
        host_slots=pick([0, 0, 12]),
        acceptance=0.5,
        dice=dice,
        slots=1,
        plain=[],
        short=6,
        late=pick([0.1, 0.4, 0.8, 0.95]),
        limits={
            "block_size": dice.randint(1, 4),
            "max_num_batched_tokens": dice.randint(6, 16),
            "max_num_seqs": dice.randint(1, 6),
            "max_model_len": pick([24, 32]),
            "policy": pick([*Policy]),
            "watermark": 0.0,
            "prefix_caching": pick([False, True]),
            "isolated": False,
            "max_itl": None,
            "max_width": pick([1, 1, 1, 2, 4]),
            "most_unverified": pick([0, 3, 31]),
            "invariant_decoding": pick([False, True]),
            "deferred_rows": None,
            "hands_over": False,
            "step_seconds": (),
        },
    )
    return machine


def asked(dice: random.Random) -> dict[str, Any]:
    """What a request asks, mostly for an answer that follows a grammar."""
    pick, text = dice.choice, dice.choice([None, *LANGUAGES, *LANGUAGES])
    return {
        "length": dice.randint(1, 12),
        "n": pick([1, 1, 1, 3]),
        "seed": dice.randrange(3),
        "max_tokens": pick([None, dice.randint(1, 18)]),
        "min_tokens": pick([0, 0, 3]),
        "priority": dice.randint(-1, 1),
        "request_class": "default",
        "eos": (3,),
        "stop_token_ids": pick([(), (), (14,)]),
        "stop": pick([(), (), ("p",), ("i",)]),
        "ignore_eos": False,
        "detokenize": True,
        "stream": pick([False, True]),
        "deadline": pick([None, None, None, 0.01]),
        "queue_timeout": None,
        "prompt_logprobs": None,
        "pooling": None,
        "deterministic": dice.random() < 0.1,
        "lora": "",
        "constraint": None if text is None else Constraint(KIND, text, after=pick([(), (), (), (9,)])),
        "drafts": pick([True, True, False]),
    }


def happen(machine: EngineMachine, dice: random.Random) -> None:
    """One of the things that may, the rare ones rarely."""
    number = dice.randrange(100)
    if number < 25:
        machine.add(fields=asked(dice))
    elif number < 32:
        machine.abort(number=dice.randrange(30))
    elif number < 37:
        machine.go_wrong(
            where=dice.choice(["before a draw", "behind a draw", "in numbers", *Fault]),
            kind=dice.randrange(4),
        )
    elif number < 40:
        machine.steer(mode=dice.choice([PauseMode.KEEP, PauseMode.WAIT, None, None]), parts=PARTS)
    elif number < 42:
        machine.sleep(level=1, is_patient=True)
    elif number < 48:
        machine.wait(seconds=0.004)
    else:
        machine.turn(count=dice.randint(1, 3))


BESIDE_A_VERIFYING_CHUNK = (4740, 5703, 6719)
"""Seeds in which a mask is late in a narrow step that has counts, as a deterministic request's tokens are verified in it."""


@pytest.mark.parametrize("seed", [*range(40), *BESIDE_A_VERIFYING_CHUNK])
def test_each_answer_is_what_it_would_be_alone(seed: int) -> None:
    dice = random.Random(seed)
    machine = built(dice)
    try:
        for _ in range(40):
            happen(machine, dice)
            machine.books_balance()
            machine.events_say_what_can_be_found()
    finally:
        machine.steer(mode=None, parts=PARTS)
        machine.teardown()
