"""A tokenizer from a GGUF file encodes and decodes as the one that was written into it."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_REGEX

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.gguf.tokenizer import WORDS, GGUFTokenizer
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from tests.unit.adapters.gguf.gguf_files import write_gguf
from tests.unit.adapters.huggingface.conftest import CORPUS
from tests.unit.adapters.huggingface.oracle import oracle
from tests.unit.adapters.pytorch.tiny_models import make_tiny_model

LLAMA3_REGEX = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
TEXTS = [
    "",
    " ",
    "It's 2024, and IT'S 31415 o'clock:  tabs\tand\r\n\r\nlines\n",
    "naïve cafe\u0301 — 你好、世界 🙂👩‍👩‍👧 ١٢٣٤ x²",
    "The quick  brown\n\n   fox ... !!! def f(x): return {x + 1}  ",
]
SPLITTERS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    **{
        rule: pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        for rule, pattern in {"qwen2": QWEN2_REGEX, "llama-bpe": LLAMA3_REGEX}.items()
    },
}


def rebuilt(architecture: str = "llama", **keys: Any) -> Tokenizer:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return Tokenizer.from_str(GGUFTokenizer(metadata, architecture).backend().to_str())


def written(tokenizer: Tokenizer, **keys: Any) -> dict[str, Any]:
    """The keys of GGUF that a byte-level tokenizer is written as."""
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [3 if token in special else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in merges],
        **keys,
    }


@functools.cache
def trained(rule: str) -> Tokenizer:
    """With merges across the borders of words, digits included, so that every border shows."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=rule == "llama-bpe"))
    tokenizer.normalizer = normalizers.NFC() if rule == "qwen2" else None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=alphabet,
        special_tokens=["<|begin|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator([*CORPUS, *TEXTS * 4], trainer)
    tokenizer.pre_tokenizer, tokenizer.decoder = SPLITTERS[rule], decoders.ByteLevel()
    return tokenizer


@functools.cache
def read_back(rule: str) -> Tokenizer:
    return rebuilt(**written(trained(rule), pre=rule, add_bos_token=False))


@pytest.mark.parametrize("rule", SPLITTERS)
@given(st.sampled_from(TEXTS) | st.text())
def test_byte_level_tokenizers_come_back(rule: str, text: str) -> None:
    ours, theirs = read_back(rule), trained(rule)
    for each in (text, f"a {text}<|im_end|>{text}"):
        ids = theirs.encode(each).ids
        assert ours.encode(each).ids == ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("rule", SPLITTERS)
def test_the_texts_tell_the_rules_apart(rule: str) -> None:
    words = {
        other: [splitter.pre_tokenize_str(text) for text in TEXTS] for other, splitter in SPLITTERS.items()
    }
    assert [other for other in SPLITTERS if words[other] == words[rule]] == [rule]


@pytest.mark.parametrize(
    ("rule", "words"),
    {
        "default": ["Hello", ",", " World", "'", "s", " ", "123", "4", "!"],
        "tekken": ["Hello", ",", " World", "'s", " ", "1", "2", "3", "4", "!"],
    }.items(),
)
def test_rules_that_no_library_here_knows(rule: str, words: list[str]) -> None:
    assert rule in WORDS
    tokenizer = rebuilt(**written(trained("gpt-2"), pre=rule))
    text = "Hello, World's 1234!"
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[begin:end] for begin, end in spans] == words


def test_tekken_ends_a_word_before_a_capital() -> None:
    tokenizer = rebuilt(**written(trained("gpt-2"), pre="tekken"))
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("fooBarBAZ")] == [
        "foo",
        "Bar",
        "BAZ",
    ]


@pytest.mark.parametrize(("rule", "ids"), [("llama-bpe", [2]), ("gpt-2", [0, 1])])
def test_a_whole_word_that_is_a_token_needs_no_merges_where_the_rule_says_so(
    rule: str, ids: list[int]
) -> None:
    tokenizer = rebuilt(model="gpt2", pre=rule, tokens=["a", "b", "ab"], merges=[])
    assert tokenizer.encode("ab").ids == ids


@pytest.mark.parametrize(
    ("rule", "keys", "around"),
    [
        ("llama-bpe", {}, (True, False)),
        ("llama-bpe", {"add_bos_token": False}, (False, False)),
        ("gpt-2", {}, (False, False)),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
    ],
)
def test_what_a_text_begins_and_ends_with(rule: str, keys: dict[str, Any], around: tuple[bool, bool]) -> None:
    tokenizer = rebuilt(**written(trained(rule), pre=rule, bos_token_id=0, eos_token_id=1, **keys))
    begins, ends = around
    plain = trained(rule).encode("Hello there").ids
    assert tokenizer.encode("Hello there").ids == [0] * begins + plain + [1] * ends
    assert tokenizer.encode("Hello there", add_special_tokens=False).ids == plain


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS_OF_PIECES = [
    "he",
    "ll",
    "hell",
    "hello",
    "▁he",
    "▁hello",
    "lo",
    "▁t",
    "▁th",
    "th",
    "the",
    "▁the",
    "▁▁",
    "s>",
]
LETTERS = sorted({*"".join(WORDS_OF_PIECES), *"<abcdefgijkmn/"})
SENTENCEPIECE = [*PIECES, *WORDS_OF_PIECES, *LETTERS]
SENTENCEPIECE_KEYS: dict[str, Any] = {
    "model": "llama",
    "tokens": SENTENCEPIECE,
    "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(SENTENCEPIECE) - len(PIECES))],
    "scores": [0.0] * len(PIECES) + [-float(rank) for rank in range(len(SENTENCEPIECE) - len(PIECES))],
}


def merged(text: str) -> list[str]:
    """As SentencePiece does it: the best scored token that two neighbours make, the leftmost first, again and again."""
    scores = dict(zip(SENTENCEPIECE[len(PIECES) :], SENTENCEPIECE_KEYS["scores"][len(PIECES) :], strict=True))
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        made = [left + right for left, right in itertools.pairwise(parts)]
        places = [place for place, each in enumerate(made) if each in scores]
        if not places:
            break
        best = max(places, key=lambda place: scores[made[place]])
        parts[best : best + 2] = [made[best]]
    in_bytes = {part: [f"<0x{byte:02X}>" for byte in part.encode()] for part in parts}
    return [piece for part in parts for piece in ([part] if part in scores else in_bytes[part])]


@functools.cache
def sentencepiece() -> Tokenizer:
    return rebuilt(**SENTENCEPIECE_KEYS)


@given(st.sampled_from(["hello the  hello", " hello", "", "é\n"]) | st.text(alphabet="hel ot<s>/é▁\n"))
def test_sentencepiece_tokens_come_from_scores_and_bytes(text: str) -> None:
    encoded = sentencepiece().encode(text)
    has_special = any(token in text for token in ("<s>", "</s>"))
    assert has_special or encoded.tokens == ["<s>", *merged(text)]
    if "▁" not in text and not has_special:
        assert sentencepiece().decode(encoded.ids) == text


def test_merges_are_ranked_as_transformers_ranks_them() -> None:
    places = {piece: place for place, piece in enumerate(SENTENCEPIECE) if place >= len(PIECES)}
    scores = {piece: SENTENCEPIECE_KEYS["scores"][place] for piece, place in places.items()}
    merges = json.loads(sentencepiece().to_str())["model"]["merges"]
    assert [tuple(pair) for pair in merges] == generate_merges(places, scores)
    assert ["<", "s>"] not in merges


def test_no_blank_is_put_before_a_text_where_the_file_says_so() -> None:
    tokenizer = rebuilt(**SENTENCEPIECE_KEYS, add_space_prefix=False)
    assert tokenizer.encode("hello the").tokens == ["<s>", "hello", "▁the"]
    assert tokenizer.decode(tokenizer.encode(" hello").ids) == " hello"


def test_the_folder_has_named_tokens_a_template_and_every_end(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    keys = written(trained("smollm"), pre="smollm", bos_token_id=0, eos_token_id=5, padding_token_id=1)
    tiny = make_tiny_model(tmp_path, vocab_size=len(keys["tokens"]))
    change = {"tokenizer.chat_template": template}
    folder = present_folder(
        str(write_gguf(tmp_path / "m.gguf", tiny.reference, tokenizer=keys, change=change))
    )
    tokenizer = HFTokenizer(folder)
    assert tokenizer.named_tokens == {
        "bos_token": "<|begin|>",
        "eos_token": keys["tokens"][5],
        "pad_token": "<|im_end|>",
    }
    assert set(read_spec(folder).eos_token_ids) == {5, keys["tokens"].index("<|im_end|>")}
    rendered = HFChatTemplate(tokenizer).render([{"role": "user", "content": "Hello <|im_end|>"}])
    assert rendered[0] == 0
    assert rendered[-1] == 1
    assert 1 not in rendered[:-1]
    for text in TEXTS:
        assert tokenizer.encode(text) == oracle(folder).encode(text)
