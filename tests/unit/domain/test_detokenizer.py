"""Text that grows token by token: always a prefix of the whole, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.text.stream import Detokenizer
from nanoserve.ports.driven import Tokenizer
from tests.unit.domain.tokenizers import ByteTokenizer, PieceTokenizer

TEXTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=12),
    st.text(alphabet="a\u00e9\u4f60\U0001f600\u200d", max_size=12),
)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=30)


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    pieces, start, turn = [], 0, 0
    while start < len(data):
        pieces.append(data[start : start + cuts[turn % len(cuts)]])
        start += cuts[turn % len(cuts)]
        turn += 1
    return pieces


def stream(tokenizer: Tokenizer, ids: Sequence[int], num_prompt: int) -> list[str]:
    detokenizer = Detokenizer(tokenizer, ids[:num_prompt])
    return [detokenizer.push(token) for token in ids[num_prompt:]] + [detokenizer.flush()]


def assert_shows_all_that_is_complete(pieces: list[bytes], num_prompt: int) -> None:
    shown = stream(ByteTokenizer(pieces), range(len(pieces)), num_prompt)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces[:num_prompt]:
        decoder.decode(piece)
    assert shown == [*(decoder.decode(piece) for piece in pieces[num_prompt:]), ""]


@given(text=TEXTS, cuts=CUTS, share=st.floats(0, 1))
def test_any_text_cut_into_any_bytes(text: str, cuts: list[int], share: float) -> None:
    pieces = [b"x", *pieces_of(text.encode(), cuts)]
    assert_shows_all_that_is_complete(pieces, 1 + int(share * (len(pieces) - 1)))


@given(data=st.binary(max_size=24), cuts=CUTS, share=st.floats(0, 1))
def test_invalid_bytes_stream_as_prefixes_of_the_whole_decode(
    data: bytes, cuts: list[int], share: float
) -> None:
    pieces = [b"x", *pieces_of(data, cuts)]
    num_prompt = 1 + int(share * (len(pieces) - 1))
    prompt, whole = b"".join(pieces[:num_prompt]), b"".join(pieces)
    before, after = prompt.decode(errors="replace"), whole.decode(errors="replace")
    shown = stream(ByteTokenizer(pieces), range(len(pieces)), num_prompt)
    settled = codecs.getincrementaldecoder("utf-8")("replace").decode(prompt)
    assert "".join(shown) in {after[len(before) :], after[len(settled) :]}


@given(data=st.binary(min_size=1, max_size=24))
def test_at_most_three_tokens_are_held_back(data: bytes) -> None:
    pieces = [b"x", *(bytes([byte]) for byte in data)]
    shown = stream(ByteTokenizer(pieces), range(len(pieces)), 1)
    for number in range(4, len(shown)):
        oldest = b"x" + data[: number - 3]
        assert len("".join(shown[:number])) + 1 >= len(oldest.decode(errors="ignore"))
        assert any(shown[number - 4 : number])


def test_a_replacement_character_of_the_prompt_is_not_output() -> None:
    pieces = [b"x", "\ufffd".encode(), b"a", b"b"]
    assert stream(ByteTokenizer(pieces), range(4), 2) == ["a", "b", ""]
    assert stream(ByteTokenizer(pieces), range(2), 2) == [""]
    assert stream(ByteTokenizer([b"x", b"\xf0", b""]), range(3), 2) == ["", ""]


def test_skipped_tokens_never_let_the_window_grow() -> None:
    tokenizer = ByteTokenizer([b"x", b"<eos>", "\u00e9".encode()], special={1})
    detokenizer = Detokenizer(tokenizer, [0])
    assert "".join(detokenizer.push(1) for _ in range(1000)) == ""
    assert detokenizer.push(2) == "\u00e9"
    assert tokenizer.longest_decode < 100


def test_special_tokens_are_text_where_they_are_not_skipped() -> None:
    detokenizer = Detokenizer(ByteTokenizer([b"x", b"<eos>"], special={1}), [0], skip_special_tokens=False)
    assert detokenizer.push(1) == "<eos>"


WORDS = ["\u2581the", "\u2581", "s", "\u2581\u2581", "caf\u00e9", "\n", "\u2581\u4f60"]
SP_TEXT = st.lists(st.sampled_from([*WORDS, "\U0001f600", "\u20ac", "\u00fc"]), min_size=1, max_size=14)


def sentencepiece_ids(parts: Sequence[str]) -> tuple[PieceTokenizer, list[int]]:
    tokens: list[str | int] = []
    for part in parts:
        tokens.extend([part] if part in WORDS else list(part.encode()))
    return PieceTokenizer(tokens), list(range(len(tokens)))


@given(parts=SP_TEXT, share=st.floats(0, 1))
def test_spaces_and_byte_fallback_come_out_as_in_the_whole_decode(parts: list[str], share: float) -> None:
    tokenizer, ids = sentencepiece_ids(["\u2581the", *parts])
    num_prompt = 1 + int(share * (len(ids) - 1))
    shown = stream(tokenizer, ids, num_prompt)
    whole = tokenizer.decode(ids)
    prompt = next(
        text for held in range(4) if "\ufffd" not in (text := tokenizer.decode(ids[: num_prompt - held]))
    )
    assert "".join(shown) == whole[len(prompt) :]
    assert "\ufffd" not in "".join(shown)
    for number, piece in enumerate(shown[:-1], start=num_prompt + 1):
        arrived = tokenizer.decode(ids[:number])
        assert ("\ufffd" in arrived) == (piece == "" and not arrived.endswith(whole[: len(arrived)]))


def test_a_long_run_of_byte_tokens_before_the_output_is_read_whole() -> None:
    tokenizer, ids = sentencepiece_ids(["\u2581the", *("\U0001f600",) * 5])
    assert "".join(stream(tokenizer, ids, 1 + 16)) == "\U0001f600"
    assert "".join(stream(tokenizer, ids, 1 + 14)) == "\U0001f600\U0001f600"


def test_broken_bytes_after_whole_ones_lose_nothing_of_what_follows() -> None:
    tokenizer = PieceTokenizer(["a", *"\U0001f600".encode(), 0xE2, 0x82, "b", "c"])
    assert "".join(stream(tokenizer, range(9), 1)) == "\U0001f600\ufffd\ufffdbc"


def test_bytes_that_never_become_text_are_shown_and_never_let_the_window_grow() -> None:
    tokenizer = ByteTokenizer([b"a", b"\x80"])
    detokenizer = Detokenizer(tokenizer, [0])
    text = "".join(detokenizer.push(1) for _ in range(500)) + detokenizer.flush()
    assert text == "\ufffd" * 500
    assert tokenizer.longest_decode < 60
