"""Tiny model folders made on the spot: two kinds of tokenizer, with chat templates in the published styles."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from nanoserve.adapters.huggingface.tokenizer import HFTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "Hello there! What is the weather like today? It is warm, and the sky is blue.",
    "user assistant system You are a helpful assistant. def main(): return 0",
    "naïve café — 你好、世界 🙂👩‍👩‍👧 done",
] * 4

TEMPLATES = pathlib.Path(__file__).with_name("templates")
GLUING_TEMPLATE = "{%- for message in messages %}{{- message.content | trim }}{%- endfor %}<|eot_id|>"


def chat_style(name: str) -> str:
    """A chat template of `templates/`, in a published style."""
    return (TEMPLATES / f"{name}.jinja").read_text()


def templates(folder: str) -> dict[str, str]:
    """All templates of a folder of `templates/`, by name."""
    return {each.stem: each.read_text() for each in sorted((TEMPLATES / folder).iterdir())}


def _save(folder: pathlib.Path, tokenizer: Tokenizer, source: str | None, **config: Any) -> str:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    return str(folder)


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>", "    ")])
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=520, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *every_byte]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], str]:
    """A folder with a byte-level tokenizer (as Llama 3 and Qwen have) and the given chat template."""
    tokenizer = byte_level_tokenizer()

    def make(source: str | None) -> str:
        folder = tmp_path_factory.mktemp("byte_level") / "model"
        return _save(folder, tokenizer, source, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")

    return make


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer that puts a blank before a text (as Llama 2 has)."""
    folder = tmp_path_factory.mktemp("sentencepiece") / "model"
    return _save(folder, sentencepiece_tokenizer(), chat_style("llama2"), bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Callable[[str | None], str]) -> HFTokenizer:
    return HFTokenizer(byte_level_folder(None))


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: str) -> HFTokenizer:
    return HFTokenizer(sentencepiece_folder)


@pytest.fixture(scope="session")
def chat_tokenizers(
    byte_level_folder: Callable[[str | None], str], sentencepiece: HFTokenizer
) -> dict[str, HFTokenizer]:
    """Tokenizers by the style of their chat template."""
    styles = {each: chat_style(each) for each in ("llama3", "chatml", "thinking")}
    made = {
        name: HFTokenizer(byte_level_folder(source))
        for name, source in {**styles, "gluing": GLUING_TEMPLATE}.items()
    }
    return {**made, "llama2": sentencepiece}
