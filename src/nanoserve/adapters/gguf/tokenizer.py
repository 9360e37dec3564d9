"""The tokenizer in a GGUF header.

llama.cpp names the rule that splits a text into words (`tokenizer.ggml.pre`); the rules themselves are those of the
tokenizer.json of the models that the names come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

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
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
_USUAL_IDS: Final = {"bos": 1, "eos": 2, "unknown": 0}
"""Defaults for a tokenizer of the kind `llama` whose file is silent."""
_ENDS: Final = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"}
)
"""Control tokens that end an answer under whatever id: a file names only one or two of a model's."""


class GGUFTokenizer:
    """Reads the tokenizer out of a header's metadata. Raises `ModelLoadError`, without the file's name, for an unknown kind."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._tokens: Sequence[str] = self._get("tokens") or []
        self._vocabulary = {token: place for place, token in enumerate(self._tokens)}
        self._types: Sequence[int] = self._get("token_type") or [_NORMAL] * len(self._tokens)
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

    def backend(self) -> Tokenizer:
        """The tokenizer itself. Raises `ModelLoadError` if its parts contradict each other."""
        try:
            backend = self._byte_level() if self._kind == "gpt2" else self._sentencepiece()
        except ModelLoadError:
            raise
        except Exception as error:  # noqa: BLE001 - what Rust reports has no narrower type
            raise ModelLoadError(f"its tokenizer is damaged ({error}); download it again") from None
        pairs = zip(self._tokens, self._types, strict=True)
        added = [each for each in pairs if each[1] in {_UNKNOWN, _CONTROL, _USER_DEFINED}]
        backend.add_tokens(
            [AddedToken(text, normalized=False, special=kind != _USER_DEFINED) for text, kind in added]
        )
        begins = self._kind == "llama" or self._rule in _WHOLE_WORDS_FIRST
        bos = self._named("bos") if self._get("add_bos_token", begins) else []
        eos = self._named("eos") if self._get("add_eos_token", False) else []
        if bos or eos:
            around = [(text, backend.token_to_id(text)) for text in {*bos, *eos}]
            backend.post_processor = TemplateProcessing(single=[*bos, "$A", *eos], special_tokens=around)
        return backend

    def config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json: the named tokens and the chat template."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        named = {f"{name}_token": text for name, key in names.items() for text in self._named(key)}
        template = self._metadata.get("tokenizer.chat_template")
        return {"tokenizer_class": "PreTrainedTokenizerFast", **named, "chat_template": template}

    def end_ids(self) -> list[int]:
        """The ids that end an answer."""
        ends = {text for name in ("eos", "eot", "eom") for text in self._named(name)}
        return [
            place
            for place, (text, kind) in enumerate(zip(self._tokens, self._types, strict=True))
            if text in ends or (kind == _CONTROL and text in _ENDS)
        ]

    def _named(self, name: str) -> list[str]:
        """The text of a token that has a name, if it has one."""
        usual = _USUAL_IDS.get(name) if self._kind == "llama" else None
        place = self._get(f"{name}_token_id", usual)
        return [] if place is None else list(self._tokens[place : place + 1])

    def _byte_level(self) -> Tokenizer:
        """Byte-pair encoding over bytes, within the words that the rule finds."""
        merges = [tuple(each.split(" ", 1)) for each in self._get("merges") or []]
        backend = Tokenizer(BPE(self._vocabulary, merges, ignore_merges=self._rule in _WHOLE_WORDS_FIRST))
        patterns = WORDS[self._rule]
        words = [Split(Regex(each), behavior="isolated") for each in patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.normalizer = normalizers.NFC() if patterns == (_QWEN2,) else None
        backend.pre_tokenizer = pre_tokenizers.Sequence([*words, to_bytes])
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> Tokenizer:
        """Byte-pair encoding over characters, the best scored token first; unknown characters are bytes."""
        merges = [pair for _, pair in sorted(self._scored_merges())]
        (unknown,) = self._named("unknown")
        model = BPE(self._vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        backend = Tokenizer(model)
        prefix = self._get("add_space_prefix", True)
        prepend = [normalizers.Prepend("▁")] if prefix else []
        strip = [decoders.Strip(content=" ", left=1)] if prefix else []
        backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return backend

    def _scored_merges(self) -> Iterator[tuple[tuple[float, int, int], tuple[str, str]]]:
        """Every way to make a token of two others, and its rank: merging goes by the score of what is made."""
        scores = self._get("scores")
        if not scores or len(scores) != len(self._tokens):
            raise ModelLoadError("its tokenizer (llama) has no scores; convert or download the model again")
        places = {
            token: place
            for place, token in enumerate(self._tokens)
            if self._types[place] in {_NORMAL, _USER_DEFINED, _UNUSED}
        }
        for token, place in places.items():
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in places and right in places:
                    yield (-scores[place], place, -cut), (left, right)
