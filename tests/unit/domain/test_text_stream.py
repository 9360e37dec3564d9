"""Text, ids and log-probabilities of one answer: released together, cut at the same place, never taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.dialects.reader import held_back
from nanoserve.domain.text.stream import IdStream, StopMatch, TextStream, find_stop
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import TokenLogprobs
from tests.unit.domain.tokenizers import ByteTokenizer

PROMPT = b"?"


@attrs.frozen
class Shown:
    """What a stream gave out, turn by turn."""

    pieces: list[str]
    token_ids: list[int]
    logprobs: list[int]
    stop: str | None
    counts: list[int]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def run(pieces: Sequence[bytes], **params: Any) -> Shown:
    """Push the pieces, one token each, as an engine would; token i + 1 is piece i."""
    request = Request(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(**params))
    stream = TextStream(request, ByteTokenizer([PROMPT, *pieces]))
    shown = Shown([], [], [], None, [])
    for token in range(1, len(pieces) + 1):
        stop = stream.push(token, TokenLogprobs(token, -1.0, 1))
        if stop is not None:
            shown = attrs.evolve(shown, stop=stop)
            break
        _note(shown, stream.take())
    _note(shown, stream.close())
    return shown


def _note(shown: Shown, released: Any) -> None:
    shown.pieces.append(released.text)
    shown.token_ids.extend(released.token_ids)
    shown.logprobs.extend(score.token_id for score in released.logprobs)
    shown.counts.append(len(shown.token_ids))


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    out, start = [], 0
    for width in cuts:
        out.append(data[start : start + width])
        start += width
    return [piece for piece in [*out, data[start:]] if piece]


TEXTS = st.text(alphabet="ab\u00e9\U0001f600", max_size=10)
STOPS = st.lists(st.text(alphabet="ab\u00e9\U0001f600", min_size=1, max_size=3), max_size=3)
CUTS = st.lists(st.integers(1, 6), max_size=16)


@given(text=TEXTS, stops=STOPS, cuts=CUTS, include=st.booleans())
def test_the_answer_does_not_depend_on_how_its_text_was_cut_into_tokens(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    shown = run(cut(text.encode(), cuts), stop=stops, include_stop_str_in_output=include)
    match = find_stop(text, stops, 0)
    if match is None:
        assert (shown.text, shown.stop) == (text, None)
    else:
        assert (shown.text, shown.stop) == (text[: match.end if include else match.start], match.stop)


@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_ids_and_logprobs_are_cut_where_the_text_is(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces = cut(text.encode(), cuts)
    shown = run(pieces, stop=stops)
    assert shown.token_ids == shown.logprobs
    assert shown.token_ids == list(range(1, len(shown.token_ids) + 1))
    kept = b"".join(pieces[: len(shown.token_ids)])
    assert kept.startswith(shown.text.encode())
    if shown.token_ids:
        last = b"".join(pieces[: len(shown.token_ids) - 1])
        assert len(last.decode(errors="ignore")) < len(shown.text) or shown.stop is None


@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_whatever_was_shown_has_its_ids_and_no_id_runs_ahead_of_its_text(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    pieces = cut(text.encode(), cuts)
    shown = run(pieces, stop=stops)
    so_far = ""
    for piece, count in zip(shown.pieces[:-1], shown.counts, strict=False):
        so_far += piece
        assert text.startswith(so_far)
        assert len(b"".join(pieces[:count])) <= len(so_far.encode())


@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_nothing_is_held_back_but_half_characters_and_possible_stops(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    pieces = cut(text.encode(), cuts)
    shown = run(pieces, stop=stops)
    so_far = ""
    for number, piece in enumerate(shown.pieces[:-1], start=1):
        so_far += piece
        arrived = b"".join(pieces[:number]).decode(errors="ignore")
        assert len(so_far) == len(arrived) - held_back(arrived, stops)


def test_a_token_that_ends_one_character_and_begins_the_next_waits_for_it() -> None:
    emoji = "\U0001f600\U0001f680".encode()
    shown = run([emoji[:3], emoji[3:6], emoji[6:]])
    assert shown.pieces == ["", "\U0001f600", "\U0001f680", ""]
    assert shown.counts == [0, 1, 3, 3]


def test_a_stop_inside_a_split_character_keeps_every_token_of_the_text_before_it() -> None:
    data = "\U0001f600\U0001f680".encode()
    shown = run([data[:3], data[3:6], data[6:]], stop=["\U0001f680"])
    assert (shown.text, shown.token_ids) == ("\U0001f600", [1, 2])


def test_a_character_cut_off_by_the_end_is_shown_broken_and_its_ids_are_counted() -> None:
    shown = run([b"a", b"\xf0", b"\x9f"])
    assert shown.pieces == ["a", "", "", "\ufffd"]
    assert shown.counts == [1, 1, 1, 3]


def test_stop_strings_wait_for_min_tokens() -> None:
    pieces = [b"a", b"STOP", b"b", b"STOP", b"c"]
    shown = run(pieces, stop=["STOP"], min_tokens=2)
    assert (shown.text, shown.token_ids) == ("aSTOPb", [1, 2, 3])
    assert run(pieces, stop=["STOP"], min_tokens=1).text == "a"


def test_a_stop_begun_before_min_tokens_does_not_count() -> None:
    shown = run([b"aST", b"OP", b"STOP"], stop=["STOP"], min_tokens=1)
    assert shown.text == "aSTOP"


def test_a_token_that_is_not_printed_is_counted_after_the_text_before_it() -> None:
    request = Request(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams())
    stream = TextStream(request, ByteTokenizer([PROMPT, b"a", b"\xf0", b"</s>"]))
    stream.push(1, None)
    stream.push(2, None)
    stream.push_unseen(3, None)
    released = stream.close()
    assert (released.text, released.token_ids) == ("a\ufffd", (1, 2, 3))


def test_a_stream_without_text_holds_nothing_back() -> None:
    stream = IdStream()
    assert stream.push(5, TokenLogprobs(5, -1.0, 1)) is None
    assert stream.take().token_ids == (5,)
    stream.push_unseen(6, None)
    assert (stream.close().token_ids, stream.take().token_ids) == ((6,), ())


FEW_LETTERS = st.text(alphabet="ab", max_size=8)
FEW_STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(text=FEW_LETTERS, stops=FEW_STOPS, begin=st.integers(0, 8))
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


@given(text=FEW_LETTERS, more=FEW_LETTERS, stops=FEW_STOPS)
def test_exactly_what_may_begin_a_stop_string_is_held_back(text: str, more: str, stops: list[str]) -> None:
    tails = [text[start:] for start in range(len(text))]
    longest = max(
        (len(tail) for tail in tails for stop in stops if len(tail) < len(stop) and stop.startswith(tail)),
        default=0,
    )
    assert held_back(text, stops) == longest
    if find_stop(text, stops, 0) is None and (match := find_stop(text + more, stops, 0)):
        assert match.start >= len(text) - held_back(text, stops)
