"""Text to token ids and back, with the tokenizer of a model folder (`ports.Tokenizer`)."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from tokenizers import AddedToken, Encoding, Tokenizer, decoders

from nanoserve.adapters.huggingface.tokenizer_files import read_tokenizer
from nanoserve.ports.driven import Check, DialectFacts, TokenizerFacts
from nanoserve.ports.errors import BadValueError, ModelLoadError

MOST_TOKENS: Final = 2**24
MOST_THREADS: Final = 8
"""The most that encode at once."""

_LONG_TEXT: Final = 1 << 19  # characters; four million tokens keep the lock for 30 ms when they are dropped
_NAMED_BYTE: Final = re.compile("<0x([0-9A-F]{2})>")
_SHOWN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_SIGNS: Final = {chr(byte): byte for byte in _SHOWN} | {
    chr(0x100 + place): byte for place, byte in enumerate(each for each in range(0x100) if each not in _SHOWN)
}
"""GPT-2's signs for bytes, in which byte-level vocabularies are written."""


class HFTokenizer:
    """The tokenizer of a model folder: encodes, decodes, and knows its special tokens and its chat template.

    Raises `ModelLoadError` if the folder has no tokenizer that can be read.

    Attributes:
        named_tokens: the special tokens that have names, such as `bos_token`, by name.
        chat_template: the source of the folder's template; None if it has none, or several and no default.
        tool_template: that of the one for conversations with tools, if it has one.

    Several threads may call it, and up to `MOST_THREADS` encode at the same time.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._parts = parts = read_tokenizer(folder)
        self.named_tokens = parts.named_tokens
        self.chat_template = parts.chat_template
        self.tool_template = parts.tool_template
        self._lock, self._alone = threading.RLock(), threading.Lock()
        self._turns = threading.Semaphore(MOST_THREADS)
        self._backend = parts.backend
        self._texts = _Texts(parts.backend)
        if self.vocab_size > MOST_TOKENS:
            raise ModelLoadError(
                f"{folder}: its tokenizer has the token id {self.vocab_size - 1}; ids of up to {MOST_TOKENS - 1} are read"
            )

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; a model's own vocabulary may be larger still."""
        count = self._backend.get_vocab_size(with_added_tokens=True)
        if None not in map(self._backend.id_to_token, range(count)):
            return count  # each of that many tokens has an id below: a dictionary of all takes twice as long
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        eos = self._backend.token_to_id(self.named_tokens.get("eos_token", ""))
        return () if eos is None else (eos,)

    @property
    def added_tokens(self) -> dict[int, AddedToken]:
        """The tokens that are found in a text before it is split into words, by id."""
        return self._backend.get_added_tokens_decoder()

    @property
    def description(self) -> str:
        """All of it as the text of a tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    @property
    def facts(self) -> TokenizerFacts:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return TokenizerFacts(
            tokenizer_class=self._parts.class_name,
            chat_template=self.chat_template,
            **{name: self.named_tokens.get(name) for name in names},
        )

    @property
    def dialect_facts(self) -> DialectFacts:
        """The folder's description of how the model writes reasoning and calls."""
        added = self.added_tokens
        return DialectFacts(
            model_type=self._parts.model_type,
            chat_template=self.tool_template or self.chat_template,
            response_template=self._parts.response_template,
            added_tokens={token_id: token.content for token_id, token in added.items()},
            special=frozenset(token_id for token_id, token in added.items() if token.special),
        )

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        """As in the port; added tokens that are not special (runs of blanks, say) are always recognised. Raises `BadValueError` for text that is not Unicode."""
        check_unicode(text)
        is_long = check is not None and len(text) > _LONG_TEXT
        for part in [text[: len(text) // 4], text] if is_long else [text]:
            with self._turns if parse_special else self._special_as_text():
                # A batch frees the interpreter's lock while it is encoded, and a fast one keeps no offsets, which take as long again.
                (encoded,) = self._backend.encode_batch_fast([part], add_special_tokens=add_special_tokens)
            if check:
                check(len(encoded))
        ids: list[int] = encoded.ids
        return ids

    def encode_pooled(
        self,
        text: str,
        other: str | None = None,
        *,
        add_special_tokens: bool = True,
        at_most: int | None = None,
        check: Check = None,
    ) -> tuple[list[int], int]:
        check_unicode(text + (other or ""))
        texts = [text] if other is None else [text, other]
        with self._turns:
            main, *pair = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        if at_most is not None:
            special = self._backend.num_special_tokens_to_add(other is not None) if add_special_tokens else 0
            if at_most <= special:
                message = f"must be more than the {special} special tokens, got {at_most}"
                raise BadValueError("truncate_prompt_tokens", message)
            _truncate([main, *pair], at_most - special)
        encoded = self._backend.post_process(main, pair[0] if pair else None, add_special_tokens)
        if check:
            check(len(encoded))
        second = encoded.type_ids.index(1) if other is not None and 1 in encoded.type_ids else 0
        return encoded.ids, second

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Ids to text; bytes that are not (or not yet) UTF-8 become U+FFFD, ids it does not know nothing."""
        with self._lock:
            text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def bytes_of(self, token_id: int, /) -> bytes:
        """The token's bytes, parts of a character as the vocabulary writes them: `<0xE2>`, or a sign for each byte."""
        text = self.decode([token_id], skip_special_tokens=False)
        if "\ufffd" not in text:
            return text.encode()
        piece = self._backend.id_to_token(token_id) or ""
        if named := _NAMED_BYTE.fullmatch(piece):
            return bytes([int(named[1], 16)])
        is_byte_level = all(sign in _BYTE_SIGNS for sign in piece)
        return bytes(_BYTE_SIGNS[sign] for sign in piece) if is_byte_level else text.encode()

    def text_of(self, token_id: int, /) -> str | None:
        """The token's text where the tokenizer joins bytes and the token's are whole characters; of special tokens None."""
        with self._lock:
            return self._texts[token_id]

    @contextlib.contextmanager
    def _special_as_text(self) -> Iterator[None]:
        """Special tokens are plain text meanwhile, and nobody else encodes: the library has one setting for all of its threads."""
        with self._alone, contextlib.ExitStack() as turns:
            for _ in range(MOST_THREADS):
                turns.enter_context(self._turns)
            with self._lock:  # decoding waits for this moment alone, however long others encode
                self._backend.encode_special_tokens = True
            try:
                yield
            finally:
                with self._lock:
                    self._backend.encode_special_tokens = False

    def encode_without_added_tokens(self, text: str, /) -> list[int]:
        """Text to the ids of the plain model alone: no added token is recognised, special or not."""
        check_unicode(text)
        normalizer, splitter = self._backend.normalizer, self._backend.pre_tokenizer
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        words = [text] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._backend.model.tokenize(word)]


class _Texts(dict[int, str | None]):
    """The texts of `text_of` by id, filled at the first use."""

    def __init__(self, backend: Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._joins_bytes = isinstance(backend.decoder, decoders.ByteLevel)

    def __missing__(self, token_id: int) -> str | None:
        text = self._backend.decode([token_id]) if self._joins_bytes else ""
        self[token_id] = found = text if text and "\ufffd" not in text else None
        return found


def _truncate(parts: Sequence[Encoding], most: int) -> None:
    """Cut one text or a pair to this many tokens in all, the longer one first, as the library does."""
    shorter, *longer = sorted(parts, key=len)
    if not longer:
        shorter.truncate(most)
    elif len(parts[0]) + len(parts[1]) > most:
        shorter.truncate(min(len(shorter), most // 2))
        longer[0].truncate(most - len(shorter))


def check_unicode(text: str, parameter: str = "text") -> None:
    """Raises `BadValueError` if text cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{text[error.start]!r} at position {error.start}"
        raise BadValueError(parameter, f"must be valid Unicode, but has a lone surrogate: {where}") from None
