"""Text to token ids and back, over a model folder's fast tokenizer (`ports.Tokenizer`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer

from nanoserve.ports.driven import TokenizerFacts
from nanoserve.ports.errors import BadValueError, ModelLoadError

LOAD_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, ImportError)


class HFTokenizer:
    """The fast tokenizer of a model folder.

    It speaks to the Rust tokenizer behind the transformers one directly, which gives the same ids and texts
    without a dictionary of tensors around each. No file is fetched and no code of the folder is run.
    Raises `ModelLoadError` where the folder has no tokenizer, or none in the fast format.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.transformers_tokenizer = _load(folder)
        self._backend = self.transformers_tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; a model's own vocabulary may be larger still."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's own end-of-sequence id, where it declares one."""
        eos = self.transformers_tokenizer.eos_token_id
        return () if eos is None else (eos,)

    @functools.cached_property
    def chat_template(self) -> str | None:
        """The source of the folder's template; None where it has none, or several and no default."""
        try:
            source: str = self.transformers_tokenizer.get_chat_template()
        except ValueError:
            return None
        return source

    @property
    def facts(self) -> TokenizerFacts:
        """What the folder says of it."""
        own = self.transformers_tokenizer
        return TokenizerFacts(
            tokenizer_class=type(own).__name__,
            bos_token=own.bos_token,
            eos_token=own.eos_token,
            pad_token=own.pad_token,
            unk_token=own.unk_token,
            chat_template=self.chat_template,
        )

    def encode(
        self, text: str, /, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Text to ids; `parse_special=False` treats special tokens written inside the text as plain text.

        Added tokens that the tokenizer does not call special (runs of blanks, say) are ordinary vocabulary and
        always recognised. Raises `BadValueError` for text that is not Unicode, such as a lone surrogate.
        """
        check_unicode(text)
        self._backend.encode_special_tokens = not parse_special
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Ids to text; bytes that are not (or not yet) UTF-8 become U+FFFD, ids it does not know nothing."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def encode_without_added_tokens(self, text: str, /) -> list[int]:
        """Text to the ids of the plain model alone: no added token is recognised, special or not."""
        check_unicode(text)
        normalizer, splitter = self._backend.normalizer, self._backend.pre_tokenizer
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        words = [text] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._backend.model.tokenize(word)]


def check_unicode(text: str) -> None:
    """Raises `BadValueError` where text cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{text[error.start]!r} at position {error.start}"
        raise BadValueError("text", f"must be valid Unicode, but has a lone surrogate: {where}") from None


def _load(folder: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except LOAD_ERRORS as error:
        message = " ".join(str(error).split())
        raise ModelLoadError(
            f"{folder}: no tokenizer can be loaded from here ({message}); is tokenizer.json missing or damaged?"
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise ModelLoadError(
            f"{folder}: {type(tokenizer).__name__} is not a fast tokenizer; "
            "convert it to a tokenizer.json with transformers and put that into the folder"
        )
    return tokenizer
