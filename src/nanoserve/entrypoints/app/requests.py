"""From a tokenized prompt and sampling parameters to the `Request` that the engine takes."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

from nanoserve.ports.driven import Tokenizer
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
