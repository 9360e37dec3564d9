"""The tokenizer classes of transformers that matter here: which one a folder is loaded as, and what it changes.

A plain tokenizer is its tokenizer.json. Three older classes take only the vocabulary, the merges and the
post-processor from there and do the rest in a way of their own.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

Config = Mapping[str, Any]

PLAIN: Final = "TokenizersBackend"
_ALIASES: Final = {"PreTrainedTokenizer": PLAIN}
_USUAL: Final = {"mistral": PLAIN, "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
_OFTEN_MISLABELLED: Final = ("mistral", "qwen2")


def choose_class(config: Config, model: Config, tokenizer_file: pathlib.Path) -> str:
    """Chooses the tokenizer class as `AutoTokenizer` does, by tokenizer_config.json, config.json, and the text of tokenizer.json."""
    kind = model.get("model_type")
    declared = config.get("tokenizer_class") or model.get("tokenizer_class")
    if not isinstance(declared, str) or kind in _OFTEN_MISLABELLED:
        return _USUAL.get(str(kind), PLAIN)
    declared = declared.removesuffix("Fast")
    if declared == "LlamaTokenizer" and tokenizer_file.is_file():
        byte_level = '"ByteLevel"' in tokenizer_file.read_text(encoding="utf-8")
        return PLAIN if byte_level else declared
    return _ALIASES.get(declared, declared)


def rebuild(name: str, loaded: Tokenizer, config: Config) -> Tokenizer:
    """The backend as the class makes it of the loaded one, whose model is BPE unless the class is plain; its added tokens are still to be declared."""
    if name == PLAIN:
        return loaded
    model = loaded.model
    model.dropout = model.unk_token = None
    model.continuing_subword_prefix = model.end_of_word_suffix = None
    model.fuse_unk = model.byte_fallback = model.ignore_merges = False
    backend = Tokenizer(model)
    if loaded.post_processor is not None:
        backend.post_processor = loaded.post_processor
    REBUILT[name](backend, config)
    return backend


def _llama(backend: Tokenizer, config: Config) -> None:
    backend.model.fuse_unk = backend.model.byte_fallback = True
    prefix = config.get("add_prefix_space") in {None, True}
    scheme = ("always" if config.get("legacy") else "first") if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _gpt2(backend: Tokenizer, config: Config) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    backend.decoder = decoders.ByteLevel()


_QWEN2_WORDS: Final = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2(backend: Tokenizer, config: Config) -> None:
    prefix = bool(config.get("add_prefix_space"))
    split = pre_tokenizers.Split(_QWEN2_WORDS, behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()


REBUILT: Final[Mapping[str, Callable[[Tokenizer, Config], None]]] = {
    "LlamaTokenizer": _llama,
    "GPT2Tokenizer": _gpt2,
    "Qwen2Tokenizer": _qwen2,
}
_END: Final = "<|endoftext|>"
DEFAULT_TOKENS: Final[Mapping[str, Mapping[str, str | None]]] = {
    PLAIN: {},
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None},
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
}
