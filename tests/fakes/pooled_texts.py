"""For tokenizers of tests: texts that are pooled are encoded as any other, and types of tokens tell nothing."""

from __future__ import annotations

from typing import Any


class EncodesPooled:
    """A tokenizer whose pairs are both texts, one behind the other."""

    encode: Any

    def encode_pooled(
        self, text: str, other: str | None = None, *, at_most: int | None = None, **how: Any
    ) -> tuple[list[int], int]:
        return self.encode(text + (other or ""), **how)[:at_most], 0
