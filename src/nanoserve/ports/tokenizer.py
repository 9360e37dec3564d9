"""The port between text and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class TokenizerFacts:
    """What a model's files say of its tokenizer; None is what they do not say.

    It is for clients that render conversations themselves; this engine has a `ChatTemplate` for that.

    Attributes:
        tokenizer_class: the class that transformers loads it as.
        chat_template: the one that is used where a client does not choose.
    """

    tokenizer_class: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    chat_template: str | None = None


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
