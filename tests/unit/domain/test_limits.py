"""Every limit at its edges; an error names the limit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import Limits, RequestClass
from nanoserve.ports.errors import BadValueError

SMALLEST: dict[str, Any] = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "vocab_size": 1,
    "block_size": 1,
    "num_blocks": 1,
}
NO_INTEGERS = [math.nan, math.inf, -math.inf, 2.5, "8", True, [8]]
NO_NUMBERS = [math.nan, math.inf, -math.inf, "0.1", True, [0.1]]
REFUSED: list[tuple[str, list[Any]]] = [
    *((name, [least - 1, None, *NO_INTEGERS]) for name, least in SMALLEST.items()),
    ("watermark", [-0.01, 1, 1.0, None, *NO_NUMBERS]),
    ("max_itl", [0, 0.0, -1.0, *NO_NUMBERS]),
]
REFUSED_OF_A_CLASS: list[tuple[str, list[Any]]] = [
    ("max_running", [0, -1, *NO_INTEGERS]),
    ("max_waiting", [0, -1, *NO_INTEGERS]),
    ("priority", [None, *NO_INTEGERS]),
]


def test_the_smallest_of_everything_is_allowed() -> None:
    assert Limits(**SMALLEST).max_model_len == 2


@pytest.mark.parametrize(("name", "values"), REFUSED)
def test_a_limit_out_of_bounds_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(BadValueError, match=name) as caught:
            Limits(**SMALLEST | {name: value})
        assert caught.value.parameter == name


@pytest.mark.parametrize(("name", "values"), REFUSED_OF_A_CLASS)
def test_a_field_of_a_class_out_of_bounds_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(BadValueError, match=name) as caught:
            RequestClass(**{name: value})
        assert caught.value.parameter == name


@pytest.mark.parametrize("value", [None, 1e-6, 1, 3600.0])
def test_times_that_max_itl_takes(value: float | None) -> None:
    assert Limits(**SMALLEST, max_itl=value).max_itl == value


def test_a_step_must_hold_a_token_of_every_row() -> None:
    with pytest.raises(BadValueError, match="max_num_batched_tokens: must be at least max_num_seqs"):
        Limits(**SMALLEST | {"max_num_seqs": 9, "max_num_batched_tokens": 8})
    assert Limits(**SMALLEST | {"max_num_seqs": 8, "max_num_batched_tokens": 8}).max_num_seqs == 8


def test_class_names_are_distinct_and_there_is_one() -> None:
    with pytest.raises(BadValueError, match="classes"):
        Limits(**SMALLEST, classes=(RequestClass(), RequestClass()))
    with pytest.raises(BadValueError, match="classes"):
        Limits(**SMALLEST, classes=())
