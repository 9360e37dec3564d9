"""Every sampling parameter at its edges, and with what is not a value for it; an error names the parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams

TINY = 1e-9
HUGE = 10**400
EDGES: dict[str, tuple[Any, Any, float]] = {  # least, most, and what is too far beyond either
    "temperature": (0.0, 100.0, TINY),
    "top_p": (0.0, 1.0, TINY),
    "min_p": (0.0, 1.0, TINY),
    "presence_penalty": (-2.0, 2.0, TINY),
    "frequency_penalty": (-2.0, 2.0, TINY),
    "repetition_penalty": (0.001, 100.0, TINY),
    "top_k": (-1, 2**31 - 1, 1),
    "seed": (-(2**63), 2**64 - 1, 1),
    "n": (1, 128, 1),
    "max_tokens": (1, 2**31 - 1, 1),
    "logprobs": (0, 1024, 1),
    "prompt_logprobs": (0, 1024, 1),
}
NO_NUMBERS = [math.nan, math.inf, -math.inf, "1", True, [1], b"1", HUGE, -HUGE]
NO_INTEGERS = [*NO_NUMBERS, 1.5]
NO_TOKEN_IDS = [[-1], [1.0], ["1"], [None], [True], [math.nan], "ab", 5]
SWITCHES = ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"]
REFUSED: dict[str, list[Any]] = {
    **{name: [*NO_NUMBERS, None] for name, (_, _, beyond) in EDGES.items() if beyond == TINY},
    **{name: NO_INTEGERS for name, (_, _, beyond) in EDGES.items() if beyond == 1},
    "max_tokens": [*NO_INTEGERS, 10**5000],  # too long to print
    "min_tokens": [*NO_INTEGERS, 17, -1],  # max_tokens is 16
    "stop": ["", [""], ["a", ""], [5], [None], [b"a"], ["x"] * 65, ["x"] * 1_000_000, 5],
    "bad_words": ["", [""], [5], 5],
    "stop_token_ids": [*NO_TOKEN_IDS, [0] * 1_000_000 + [-1]],
    "allowed_token_ids": [*NO_TOKEN_IDS, []],
    "logit_bias": [
        *({1: bias} for bias in (math.nan, math.inf, None, "x", HUGE)),
        *({token: 1.0} for token in (-1, "x", 1.5)),
        *([1, 2], [(1, 2, 3)], 5),
    ],
    **{name: ["no"] for name in SWITCHES},
}


def assert_refused(name: str, value: Any, **others: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        SamplingParams(**{name: value}, **others)
    assert caught.value.parameter == name
    assert str(caught.value).startswith(f"{name}: ")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_value_is_refused_by_name(name: str) -> None:
    for value in REFUSED[name]:
        assert_refused(name, value)


@pytest.mark.parametrize("name", EDGES)
def test_the_edges_are_allowed_and_nothing_beyond_them(name: str) -> None:
    least, most, beyond = EDGES[name]
    for edge in (least, most):
        assert getattr(SamplingParams(**{name: edge}), name) == edge
    assert_refused(name, least - beyond)
    assert_refused(name, most + beyond)


ACCEPTED: list[tuple[str, Any, Any]] = [
    *((name, None, None) for name in ("seed", "max_tokens", "logprobs", "prompt_logprobs")),
    ("min_tokens", 16, 16),
    ("stop", "abc", ("abc",)),
    ("stop", None, ()),
    ("stop", ["x"] * 64, ("x",) * 64),
    ("stop", ["\x00", "\ud800"], ("\x00", "\ud800")),
    ("stop_token_ids", [0, 5], (0, 5)),
    ("allowed_token_ids", [0, 5], (0, 5)),
    ("allowed_token_ids", None, None),
    ("logit_bias", {"3": 1, 2: 0.5}, ((2, 0.5), (3, 1.0))),  # JSON's keys are strings
]


@pytest.mark.parametrize(("name", "value", "kept"), ACCEPTED)
def test_what_is_accepted_and_as_what(name: str, value: Any, kept: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == kept


def test_parameters_that_depend_on_another() -> None:
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17
    assert_refused("stop", "a", detokenize=False)
