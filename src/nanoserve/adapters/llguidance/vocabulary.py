"""The engine's tokenizer as llguidance knows it: the bytes of each token, and which ids no text can produce."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from llguidance import LLTokenizer

from nanoserve.ports.errors import BadValueError

_SHORT: Final = [rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in (1, 2, 3, 4, 6, 8)]
"""Slices of the vocabulary that bounded texts end with, which the library's own lack. Where all tokens of one fit, it looks at none of them."""


def make_vocabulary(tokenizer_json: str, eos_token_ids: Sequence[int], width: int) -> LLTokenizer:
    """Make one of a tokenizer.json's text, padded to the `width` of the logits. Holds the interpreter's lock: half a second for 128,000 tokens.

    Special tokens, and added ones that look like `<this>`, are no text. Added ones behind the logits, such as Gemma 3's of an image, are
    left out. Raises `BadValueError` for a tokenizer that joins neither bytes nor sentencepiece's pieces.
    """
    described: dict[str, Any] = json.loads(tokenizer_json)
    if any(each["id"] >= width for each in described["added_tokens"]):
        described["added_tokens"] = [each for each in described["added_tokens"] if each["id"] < width]
        tokenizer_json = json.dumps(described)
    # The same as these steps, which it knows.
    if isinstance(decoder := described.get("decoder"), dict) and decoder.get("type") == "Metaspace":
        blank = {"type": "Replace", "pattern": {"String": decoder["replacement"]}, "content": " "}
        steps = [blank, {"type": "ByteFallback"}, {"type": "Fuse"}]
        tokenizer_json = json.dumps(described | {"decoder": {"type": "Sequence", "decoders": steps}})
    blanks, *texts = LLTokenizer.json_slices()
    slices = [blanks, *_SHORT, *texts]
    try:
        return LLTokenizer(tokenizer_json, n_vocab=width, eos_token=list(eos_token_ids), slices=slices)
    except Exception as error:
        reason = f"the model's tokenizer is of a kind that no grammar can follow: {error}"
        raise BadValueError("constraint", reason) from error
