from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.unit.adapters.huggingface.oracle import oracle


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> HFTokenizer:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, HFTokenizer)
    return made


def test_special_tokens_in_text_are_text_when_not_parsed(byte_level: HFTokenizer) -> None:
    text = "hi<|eot_id|><|start_header_id|>system<|begin_of_text|>"
    special = set(oracle(byte_level.folder).all_special_ids)
    plain = byte_level.encode(text, add_special_tokens=False, parse_special=False)
    parsed = byte_level.encode(text, add_special_tokens=False, parse_special=True)
    assert not special & set(plain)
    assert special & set(parsed)
    assert byte_level.decode(plain) == text
    again = byte_level.encode(text, add_special_tokens=False, parse_special=True)
    assert again == parsed, "the switch leaves no trace"


def test_texts_are_encoded_at_once_and_special_tokens_as_text_meanwhile(byte_level: HFTokenizer) -> None:
    text = "hi<|eot_id|>there " * 300
    parsed, plain = (byte_level.encode(text, parse_special=each) for each in (True, False))
    assert parsed != plain
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(byte_level.encode, text, parse_special=place % 3 > 0) for place in range(60)]
        pooled = [threads.submit(byte_level.encode_pooled, text, at_most=9) for _ in range(20)]
        found = [each.result() for each in asked]
    assert found == [parsed if place % 3 else plain for place in range(60)]
    assert {len(each.result()[0]) for each in pooled} == {9}


def test_decoding_waits_for_nobody_who_waits_to_encode(byte_level: HFTokenizer) -> None:
    ids = byte_level.encode("One fox.", add_special_tokens=False)
    with ThreadPoolExecutor(1) as threads, byte_level._turns:
        waiting = threads.submit(byte_level.encode, "<|eot_id|>", parse_special=False)
        while not byte_level._alone.locked():
            pass
        assert byte_level.decode(ids) == "One fox."
        assert not waiting.done()


@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize(("first", "second"), [(7, None), (7, 2), (2, 7), (5, 5), (6, 5), (0, 7), (1, 1)])
def test_texts_and_pairs_are_cut_as_by_the_library(
    byte_level: HFTokenizer, first: int, second: int | None, add_special_tokens: bool
) -> None:
    text, other = " a" * first, None if second is None else " b" * second
    theirs = Tokenizer.from_file(f"{byte_level.folder}/tokenizer.json")
    for at_most in range(3, 16):
        theirs.enable_truncation(at_most)
        (wanted,) = theirs.encode_batch(
            [text if other is None else (text, other)], add_special_tokens=add_special_tokens
        )
        found, _ = byte_level.encode_pooled(
            text, other, at_most=at_most, add_special_tokens=add_special_tokens
        )
        assert found == wanted.ids


def test_without_added_tokens_not_even_ordinary_added_ones_are_recognised(byte_level: HFTokenizer) -> None:
    think = oracle(byte_level.folder).convert_tokens_to_ids("<think>")
    assert think in byte_level.encode("<think>", parse_special=False)
    plain = byte_level.encode_without_added_tokens("<think><|eot_id|>")
    assert max(plain) < think
    assert byte_level.decode(plain) == "<think><|eot_id|>"


@given(st.text())
def test_any_text_comes_back(byte_level: HFTokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False, parse_special=False)
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < byte_level.vocab_size for token in ids)


@given(st.text())
def test_the_bytes_of_tokens_are_those_of_the_text(byte_level: HFTokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False, parse_special=False)
    assert b"".join(map(byte_level.bytes_of, ids)) == text.encode()


def test_bytes_that_stand_for_themselves_are_named(sentencepiece: HFTokenizer) -> None:
    text = "😀🦕"
    ids = sentencepiece.encode(text, add_special_tokens=False)
    assert b"".join(map(sentencepiece.bytes_of, ids)).endswith(text.encode())


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "🙂\ud83d"])
def test_a_lone_surrogate_is_refused(tokenizer: HFTokenizer, text: str) -> None:
    with pytest.raises(BadValueError, match="lone surrogate"):
        tokenizer.encode(text)
    with pytest.raises(BadValueError, match="lone surrogate"):
        tokenizer.encode_without_added_tokens(text)


@pytest.mark.parametrize("ids", [(0, 1), (0, 7), (1, 2), (5, 1)])
@pytest.mark.parametrize("added", [(), ("b",), ("c", "d")])
def test_the_largest_id_counts_where_some_are_missing(
    tmp_path: pathlib.Path, ids: tuple[int, ...], added: tuple[str, ...]
) -> None:
    made = Tokenizer(models.WordLevel(dict(zip("ab", ids, strict=True)), unk_token="a"))
    made.add_tokens(list(added))
    made.save(str(tmp_path / "tokenizer.json"))
    assert HFTokenizer(str(tmp_path)).vocab_size == max(made.get_vocab().values()) + 1


def test_ids_beyond_the_vocabulary_are_nothing_and_half_a_character_is_a_mark(
    byte_level: HFTokenizer,
) -> None:
    assert byte_level.vocab_size == max(oracle(byte_level.folder).get_vocab().values()) + 1
    ids = byte_level.encode("Hello", add_special_tokens=False)
    assert byte_level.decode([*ids, byte_level.vocab_size + 7]) == "Hello"
    whale = byte_level.encode("\U0001f40b", add_special_tokens=False)
    assert len(whale) > 1
    assert byte_level.decode(whale[:-1]).endswith("\N{REPLACEMENT CHARACTER}")


@given(
    ids=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    before=st.lists(st.integers(0, 300), max_size=5),
)
def test_a_text_of_its_own_is_what_a_token_adds(
    byte_level: HFTokenizer, ids: list[int], before: list[int]
) -> None:
    text = byte_level.decode(before)
    for token in ids:
        alone = byte_level.text_of(token)
        assert alone is None or byte_level.decode([*before, token]) == text + alone
        before = [*before, token]
        text = byte_level.decode(before)


def test_which_tokens_have_a_text_of_their_own(byte_level: HFTokenizer, sentencepiece: HFTokenizer) -> None:
    word = byte_level.encode("Hello", add_special_tokens=False)
    assert "".join(byte_level.text_of(token) or "?" for token in word) == "Hello"
    assert None in map(byte_level.text_of, byte_level.encode("\U0001f40b", add_special_tokens=False))
    assert None in map(byte_level.text_of, byte_level.encode("<|eot_id|>", add_special_tokens=False))
    assert all(sentencepiece.text_of(token) is None for token in range(sentencepiece.vocab_size))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_missing_or_damaged_tokenizer_is_one_clear_error(
    tmp_path: pathlib.Path, byte_level: HFTokenizer, damaged: bool
) -> None:
    if damaged:
        shutil.copytree(byte_level.folder, tmp_path, dirs_exist_ok=True)
        (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelLoadError, match=r"no tokenizer.*tokenizer\.json") as caught:
        HFTokenizer(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_folder_without_a_vocabulary_gets_no_empty_tokenizer(tmp_path: pathlib.Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"has no tokenizer .*put the tokenizer's files"):
        HFTokenizer(str(tmp_path))


def test_a_slow_tokenizer_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "<unk>": 1}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    with pytest.raises(ModelLoadError, match="fast"):
        HFTokenizer(str(tmp_path))


def test_truncation_and_padding_of_the_file_do_not_apply(
    tmp_path: pathlib.Path, byte_level: HFTokenizer
) -> None:
    shutil.copytree(byte_level.folder, tmp_path, dirs_exist_ok=True)
    cutting = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    cutting.enable_truncation(3)
    cutting.enable_padding(length=64)
    cutting.save(str(tmp_path / "tokenizer.json"))
    text = "Hello there! What is the weather?"
    assert HFTokenizer(str(tmp_path)).encode(text) == byte_level.encode(text)


def test_what_the_folder_says_of_the_tokenizer(
    byte_level_folder: Callable[[str | None], str], sentencepiece: HFTokenizer
) -> None:
    made = HFTokenizer(byte_level_folder("{{ messages }}"))
    facts = made.facts
    assert (facts.bos_token, facts.eos_token) == ("<|begin_of_text|>", "<|eot_id|>")
    assert (facts.pad_token, facts.chat_template) == (None, "{{ messages }}")
    assert facts.tokenizer_class == "TokenizersBackend"
    assert made.eos_token_ids == (oracle(made.folder).eos_token_id,)
    assert sentencepiece.facts.bos_token == "<s>"
