"""Prompts on their way to the engine: the tokenizer and the chat template off the event loop, and the `Request` that they end in.

A thread for each of the two is also what keeps calls apart.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from nanoserve.domain.text.dialects.tokenized import TokenizedDialect
from nanoserve.domain.text.stream import Detokenizer
from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.ports.driven import ChatTemplate, Tokenizer
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

_SEED_BITS: Final = 63


class RequestBuilder:
    """Numbers requests, and gives them seeds and end tokens; with a seed of its own, always the same seeds in the same order."""

    def __init__(self, *, eos_token_ids: Iterable[int], seed: int | None = None, prefix: str = "") -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = seed
        self._prefix = prefix
        self._ids, self._drawn = itertools.count(), itertools.count()

    def build(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        bad_token_sequences: tuple[tuple[int, ...], ...],
        **more: Any,
    ) -> Request:
        """A request for the engine, which checks its ids against the vocabulary; `more` are other fields of `Request`."""
        return Request(
            request_id=f"{self._prefix}{next(self._ids)}",
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            seed=self._draw() if sampling.seed is None else sampling.seed,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            bad_token_sequences=bad_token_sequences,
            **more,
        )

    def _draw(self) -> int:
        """The next seed, 0 <= seed < 2**63."""
        if self._seed is None:
            return secrets.randbits(_SEED_BITS)
        digest = hashlib.blake2b(f"{self._seed}:{next(self._drawn)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1


def encode_bad_words(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Each text as ids, as it is written at the start of a line and after a space."""
    texts = [text for word in words for text in (word, " " + word.lstrip())]
    sequences = [
        tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=False)) for text in texts
    ]
    return tuple(dict.fromkeys(each for each in sequences if each))


T = TypeVar("T")


class Tokenizing:
    """Asynchronous calls to a tokenizer and a template that are not safe to share between threads.

    `token_text` and `token` are the exceptions: look-ups in tables that `learn_token_texts` fills in the thread.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, dialect: TokenizedDialect | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.dialect = dialect
        self._template = template
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._templates = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="template"
        )  # they may take long
        self._texts: list[str] = []
        self._parts: dict[int, bytes] = {}
        self.vocab_size = tokenizer.vocab_size

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Text to ids; special tokens written in it are taken as such, so one that begins it is not put there twice."""
        return await self.call(lambda: self._encoded(text, add_special_tokens=add_special_tokens))

    async def render(self, conversation: Conversation) -> tuple[int, ...]:
        """A conversation to ids; raises `BadValueError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._templates, self._rendered, conversation)

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids to text."""
        return await self.call(lambda: self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    async def encode_bad_words(self, words: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """Texts as the ids that must not be generated."""
        return await self.call(lambda: encode_bad_words(self.tokenizer, words)) if words else ()

    async def learn_token_texts(self) -> None:
        """Fill the tables of `token_text` and `token`, once."""
        if not self._texts:
            self._texts, self._parts = await self.call(self._all_texts)

    def token_text(self, token_id: int) -> str:
        """The text of one token, special ones included; empty for an id without text, or before it was learned."""
        return self._texts[token_id] if token_id < len(self._texts) else ""

    def token(self, token_id: int) -> tuple[str, bytes]:
        """The text and the bytes of one token, which may be a part of a character."""
        text = self.token_text(token_id)
        return text, self._parts.get(token_id) or text.encode()

    def close(self) -> None:
        """End the threads once they are idle."""
        for each in (self._thread, self._templates):
            each.shutdown(wait=False, cancel_futures=True)

    async def call(self, work: Callable[[], T]) -> T:
        """Do something with the tokenizer in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _rendered(self, conversation: Conversation) -> tuple[int, ...]:
        messages = conversation.messages
        ids = self._template.render(
            messages if self.dialect is None else self.dialect.messages(messages),
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            tools=conversation.tools,
            options=conversation.options,
        )
        return tuple(ids)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        repeats = add_special_tokens and len(ids) > 1 and ids[:2] == self._beginning * 2
        return ids[1:] if repeats else ids

    @functools.cached_property
    def _beginning(self) -> tuple[int, ...]:
        """The token that the tokenizer puts before every text, if it does."""
        return tuple(self.tokenizer.encode("")[:1])

    def _all_texts(self) -> tuple[list[str], dict[int, bytes]]:
        """The text of every token, and the bytes of those that are parts of characters."""
        decode, bytes_of = self.tokenizer.decode, self.tokenizer.bytes_of
        texts = [decode([token], skip_special_tokens=False) for token in range(self.vocab_size)]
        return texts, {token: bytes_of(token) for token, text in enumerate(texts) if "\ufffd" in text}


class TokenOffsets:
    """Where the text of each token begins in the text of all of them, in characters.

    The tokens are read in order and each is placed by those before it, so an answer that is read piece by piece and
    one that is read whole have the same offsets. With a `prompt` the text is the one that continues it.
    """

    def __init__(
        self, tokenizing: Tokenizing, prompt: Sequence[int] = (), *, skip_special_tokens: bool
    ) -> None:
        self._tokenizing = tokenizing
        self._prompt = prompt
        self._skip = skip_special_tokens
        self._detokenizer: Detokenizer | None = None
        self._length = 0

    async def place(self, ids: Sequence[int]) -> list[int]:
        """The offset of each of the next ids."""
        return await self._tokenizing.call(lambda: self._placed(ids))

    def _placed(self, ids: Sequence[int]) -> list[int]:
        if self._detokenizer is None:
            tokenizer = self._tokenizing.tokenizer
            self._detokenizer = Detokenizer(tokenizer, self._prompt, skip_special_tokens=self._skip)
        offsets = []
        for token in ids:
            offsets.append(self._length)
            self._length += len(self._detokenizer.push(token))
        return offsets
