"""Every sampling parameter at its edges, and with what is not a value for it; an error names the parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams

TINY = 1e-9
NUMBERS: dict[str, tuple[Any, Any]] = {
    "temperature": (0.0, 100.0),
    "top_p": (TINY, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.001, 100.0),
}
COUNTS: dict[str, tuple[Any, Any]] = {
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "n": (1, 128),
    "max_tokens": (1, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
LISTS = ["stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"]
HUGE = 10**400


def refusal(**values: Any) -> BadValueError:
    with pytest.raises(BadValueError) as caught:
        SamplingParams(**values)
    assert caught.value.parameter in values
    assert str(caught.value).startswith(f"{caught.value.parameter}: ")
    assert len(str(caught.value)) < 1000
    return caught.value


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_at_their_edges(name: str) -> None:
    for edge in NUMBERS[name]:
        assert getattr(SamplingParams(**{name: edge}), name) == edge
    low, high = NUMBERS[name]
    refusal(**{name: low - 2 * TINY})
    refusal(**{name: high + TINY})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True, [1.0], b"1"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    refusal(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
def test_counts_at_their_edges(name: str) -> None:
    low, high = COUNTS[name]
    for edge in (low, high):
        assert getattr(SamplingParams(**{name: edge}), name) == edge
    for beyond in (low - 1, high + 1, HUGE, -HUGE):
        refusal(**{name: beyond})


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, "1", True, [1], b"1"])
@pytest.mark.parametrize("name", [*COUNTS, "min_tokens"])
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    refusal(**{name: value})


@pytest.mark.parametrize("name", ["seed", "max_tokens", "logprobs", "prompt_logprobs"])
def test_counts_that_may_be_absent(name: str) -> None:
    absent: dict[str, Any] = {name: None}
    assert getattr(SamplingParams(**absent), name) is None


def test_min_tokens_is_at_most_max_tokens() -> None:
    assert SamplingParams(min_tokens=16).min_tokens == 16
    assert refusal(min_tokens=17).parameter == "min_tokens"
    assert refusal(min_tokens=-1).parameter == "min_tokens"
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17


@pytest.mark.parametrize("value", ["", [""], ["a", ""], [5], [None], [b"a"], ["x"] * 65])
def test_stop_takes_up_to_64_texts(value: Any) -> None:
    assert refusal(stop=value).parameter == "stop"


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="abc").stop == ("abc",)
    assert SamplingParams(stop=None).stop == ()
    assert len(SamplingParams(stop=["x"] * 64).stop) == 64


def test_stop_strings_need_text() -> None:
    assert refusal(stop="a", detokenize=False).parameter == "stop"


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("value", [[-1], [1.0], ["1"], [None], [True], [math.nan], "ab"])
def test_token_ids_are_integers_from_zero(name: str, value: Any) -> None:
    assert refusal(**{name: value}).parameter == name
    good: dict[str, Any] = {name: [0, 5]}
    assert getattr(SamplingParams(**good), name) == (0, 5)


def test_something_must_be_allowed() -> None:
    assert refusal(allowed_token_ids=[]).parameter == "allowed_token_ids"
    assert SamplingParams(allowed_token_ids=None).allowed_token_ids is None


@pytest.mark.parametrize("value", [{1: math.nan}, {1: math.inf}, {-1: 1.0}])
def test_a_bias_is_finite_and_for_a_token_id(value: Any) -> None:
    assert refusal(logit_bias=value).parameter == "logit_bias"
    from_json: Any = {"3": 1, 2: 0.5}
    assert SamplingParams(logit_bias=from_json).logit_bias == ((2, 0.5), (3, 1.0))


@pytest.mark.parametrize("value", ["", [""], [5]])
def test_bad_words_are_texts(value: Any) -> None:
    assert refusal(bad_words=value).parameter == "bad_words"


@pytest.mark.parametrize("name", [*NUMBERS, *LISTS])
def test_huge_integers_and_wrong_shapes_name_their_parameter(name: str) -> None:
    refusal(**{name: HUGE if name in NUMBERS else 5})


@pytest.mark.parametrize("value", [{"x": 1}, {1: "x"}, [1, 2], [(1, 2, 3)], {1: None}, {1: HUGE}, {1.5: 1}])
def test_a_malformed_bias_is_named(value: Any) -> None:
    refusal(logit_bias=value)


def test_an_integer_too_long_to_print_is_refused_by_name() -> None:
    refusal(max_tokens=10**5000)


@pytest.mark.parametrize(
    "name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"]
)
def test_switches_are_booleans(name: str) -> None:
    refusal(**{name: "no"})


def test_a_million_items_name_one() -> None:
    refusal(stop_token_ids=[0] * 1_000_000 + [-1])
    refusal(stop=["x"] * 1_000_000)


def test_nul_and_lone_surrogates_are_texts_like_any() -> None:
    assert SamplingParams(stop=["\x00", "\ud800"]).stop == ("\x00", "\ud800")
