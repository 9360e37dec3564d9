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
NOT_INTEGERS = [math.nan, math.inf, -math.inf, 2.5, "8", None, True, [8]]
NOT_NUMBERS = [math.nan, math.inf, -math.inf, "0.1", True, [0.1]]


def test_the_smallest_of_everything_is_allowed() -> None:
    assert Limits(**SMALLEST).max_model_len == 2


@pytest.mark.parametrize("name", SMALLEST)
def test_one_less_than_the_smallest_is_refused(name: str) -> None:
    with pytest.raises(BadValueError, match=name) as caught:
        Limits(**SMALLEST | {name: SMALLEST[name] - 1})
    assert caught.value.parameter == name


@pytest.mark.parametrize("value", NOT_INTEGERS)
@pytest.mark.parametrize("name", SMALLEST)
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        Limits(**SMALLEST | {name: value})
    assert caught.value.parameter == name


@pytest.mark.parametrize("value", [-0.01, 1, 1.0, *NOT_NUMBERS, None])
def test_watermark_is_a_fraction_below_one(value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        Limits(**SMALLEST, watermark=value)
    assert caught.value.parameter == "watermark"


@pytest.mark.parametrize("value", [0, 0.0, -1.0, *NOT_NUMBERS])
def test_max_itl_is_a_positive_time(value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        Limits(**SMALLEST, max_itl=value)
    assert caught.value.parameter == "max_itl"


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


@pytest.mark.parametrize("value", [0, -1, *(each for each in NOT_INTEGERS if each is not None)])
@pytest.mark.parametrize("name", ["max_running", "max_waiting"])
def test_class_bounds_are_counts_from_one(name: str, value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        RequestClass(**{name: value})
    assert caught.value.parameter == name


@pytest.mark.parametrize("value", [math.nan, 1.5, "1", None])
def test_a_class_priority_is_an_integer(value: Any) -> None:
    with pytest.raises(BadValueError, match="priority"):
        RequestClass(priority=value)
