"""The tokenizer in a GGUF header, as tokenizer.json, tokenizer_config.json and generation_config.json have it.

llama.cpp names the rule that splits a text into words (`tokenizer.ggml.pre`); the rules themselves are those of the
tokenizer.json of the models that the names come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nanoserve.ports.errors import ModelLoadError

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
)
_LLAMA3: Final = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("gpt-2", "olmo", "mpt", "phi-2", "roberta-bpe"), (_GPT2,)),
    "tekken": (_TEKKEN,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""By the name of the rule the patterns, applied in turn, each of whose matches is a word of its own."""
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Rules with which a word that is a token is that token, whatever the merges make of it; texts then begin with BOS."""
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ENDS: Final = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"}
)
"""Control tokens that end an answer under whatever id: a file names only one or two of a model's."""


class GGUFTokenizer:
    """The tokenizer of a header's metadata. Raises `ModelLoadError`, without the file's name, for an unknown kind."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._tokens: Sequence[str] = self._get("tokens") or []
        self._types: Sequence[int] = self._get("token_type") or [1] * len(self._tokens)
        self._kind, self._rule = self._get("model"), self._get("pre")
        if not self._tokens or len(self._types) != len(self._tokens):
            raise ModelLoadError("has no tokenizer, or part of one; download or convert the model again")
        if self._kind not in {"gpt2", "llama"}:
            raise ModelLoadError(f"tokenizer {self._kind!r} is not supported; known are gpt2 and llama")
        known = [name for name in WORDS if architecture != "qwen2" or WORDS[name] == (_QWEN2,)]
        if self._kind == "gpt2" and self._rule not in known:
            raise ModelLoadError(
                f"tokenizer.ggml.pre {self._rule!r} is not known for {architecture} (known are {', '.join(known)}); take "
                "a file that a recent llama.cpp has converted, or the model's safetensors"
            )

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def tokenizer_json(self) -> dict[str, Any]:
        """The content of tokenizer.json."""
        parts = self._byte_level() if self._kind == "gpt2" else self._sentencepiece()
        vocabulary = {token: place for place, token in enumerate(self._tokens)}
        parts["model"] = {"type": "BPE", "vocab": vocabulary, **parts["model"]}
        added = [
            self._added_token(place, kind)
            for place, kind in enumerate(self._types)
            if kind in {_UNKNOWN, _CONTROL, _USER_DEFINED}
        ]
        return {"version": "1.0", "added_tokens": added, "post_processor": self._post_processor(), **parts}

    def tokenizer_config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json: the named tokens and the chat template."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        named = {f"{name}_token": self._token(self._get(f"{key}_token_id")) for name, key in names.items()}
        template = self._metadata.get("tokenizer.chat_template")
        return {"tokenizer_class": "PreTrainedTokenizerFast", **named, "chat_template": template}

    def end_ids(self) -> list[int]:
        """The ids that end an answer."""
        declared = [self._get(f"{name}_token_id") for name in ("eos", "eot", "eom")]
        ends = [
            place
            for place, kind in enumerate(self._types)
            if kind == _CONTROL and self._tokens[place] in _ENDS
        ]
        return list(dict.fromkeys(place for place in (*declared, *ends) if self._token(place) is not None))

    def _token(self, place: int | None) -> str | None:
        return None if place is None or place >= len(self._tokens) else self._tokens[place]

    def _added_token(self, place: int, kind: int) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": place, "content": self._tokens[place], **flags, "special": kind != _USER_DEFINED}

    def _post_processor(self) -> dict[str, Any] | None:
        """Adds the tokens that a text begins and ends with."""
        begins = self._kind == "llama" or self._rule in _WHOLE_WORDS_FIRST
        bos = self._get("bos_token_id") if self._get("add_bos_token", begins) else None
        eos = self._get("eos_token_id") if self._get("add_eos_token", False) else None
        around = {
            place: {"id": text, "ids": [place], "tokens": [text]}
            for place in (bos, eos)
            if (text := self._token(place))
        }
        if not around:
            return None
        pieces: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        first = [{"SpecialToken": {"id": around[bos]["id"], "type_id": 0}}] if bos in around else []
        last = [{"SpecialToken": {"id": around[eos]["id"], "type_id": 0}}] if eos in around else []
        pieces = [*first, *pieces, *last]
        tokens = {each["id"]: each for each in around.values()}
        return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": tokens}

    def _byte_level(self) -> dict[str, Any]:
        """Byte-pair encoding over bytes, within the words that the rule finds."""
        patterns = WORDS[self._rule]
        words = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in patterns
        ]
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        merges = [each.split(" ", 1) for each in self._get("merges") or []]
        return {
            "normalizer": {"type": "NFC"} if patterns == (_QWEN2,) else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*words, to_bytes]},
            "decoder": to_bytes,
            "model": {"ignore_merges": self._rule in _WHOLE_WORDS_FIRST, "merges": merges},
        }

    def _sentencepiece(self) -> dict[str, Any]:
        """Byte-pair encoding over characters, the best scored token first; unknown characters are bytes."""
        prefix = self._get("add_space_prefix", True)
        normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
        normalizers += [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
        decoders: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        unknown = self._token(self._get("unknown_token_id", 0))
        merges = [[left, right] for _, left, right in sorted(self._scored_merges(), key=lambda each: each[0])]
        return {
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "merges": merges},
        }

    def _scored_merges(self) -> Iterator[tuple[tuple[float, int], str, str]]:
        """Every way to make a token of two others, and its rank: merging goes by the score of what is made."""
        scores = self._get("scores")
        if not scores or len(scores) != len(self._tokens):
            raise ModelLoadError("its tokenizer (llama) has no scores; convert or download the model again")
        places = {
            token: place
            for place, token in enumerate(self._tokens)
            if self._types[place] in {1, _USER_DEFINED, 5}
        }
        for token, place in places.items():
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in places and right in places:
                    yield (-scores[place], -cut), left, right
