"""The port between text and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Encodes and decodes; stateless, and safe to call from one thread at a time."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id it can encode to or decode."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer itself declares to end a sequence."""
        ...

    def encode(
        self, text: str, /, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Text to ids. `parse_special=False` treats special tokens written inside the text as plain text."""
        ...

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Ids to text; bytes that are not (or not yet) UTF-8 become U+FFFD."""
        ...
