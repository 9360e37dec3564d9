"""Finding stop strings, and holding back what may become one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.stream import StopMatch, find_stop, held_back

LETTERS = st.text(alphabet="ab", max_size=8)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(text=LETTERS, stops=STOPS, begin=st.integers(0, 8))
def test_the_match_is_the_one_that_ends_first_and_of_those_the_longest(
    text: str, stops: list[str], begin: int
) -> None:
    every = [
        (end, start, text[start:end])
        for end in range(len(text) + 1)
        for start in range(begin, end)
        if text[start:end] in stops
    ]
    expected = StopMatch(min(every)[1], min(every)[0], min(every)[2]) if every else None
    assert find_stop(text, stops, begin) == expected


@given(text=LETTERS, more=LETTERS, stops=STOPS)
def test_exactly_what_may_begin_a_stop_string_is_held_back(text: str, more: str, stops: list[str]) -> None:
    tails = [text[start:] for start in range(len(text))]
    longest = max(
        (len(tail) for tail in tails for stop in stops if len(tail) < len(stop) and stop.startswith(tail)),
        default=0,
    )
    assert held_back(text, stops) == longest
    if find_stop(text, stops, 0) is None and (match := find_stop(text + more, stops, 0)):
        assert match.start >= len(text) - held_back(text, stops)


def test_one_stop_string_inside_another_ends_first() -> None:
    assert find_stop("xabcd", ["abcd", "bc"], 0) == StopMatch(2, 4, "bc")
    assert find_stop("xabcd", ["abc", "bc"], 0) == StopMatch(1, 4, "abc")
    assert find_stop("xab", ["ab", "abc"], 0) == StopMatch(1, 3, "ab")


def test_nothing_is_held_back_without_stop_strings() -> None:
    assert held_back("anything", []) == 0
