"""From a prompt and sampling parameters to the `Request` that the engine takes."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable

import attrs

from nanoserve.entrypoints.offline.prompts import Prompt
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams


@attrs.frozen(kw_only=True)
class Job:
    """A request beside the text it came from."""

    prompt: Prompt
    request: Request


class RequestBuilder:
    """Numbers requests, gives them seeds and end tokens, and spells out their bad words."""

    def __init__(self, *, tokenizer: Tokenizer, eos_token_ids: Iterable[int], seed: int | None) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        self._seeds = SeedSource(seed)
        self._ids = itertools.count()

    def build(self, prompt: Prompt, sampling: SamplingParams, *, priority: int = 0) -> Job:
        """A request that is ready for the engine, which checks the ids in it against the vocabulary."""
        request = Request(
            request_id=str(next(self._ids)),
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            seed=self._seeds.draw() if sampling.seed is None else sampling.seed,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos,
            bad_token_sequences=self._bad_sequences(sampling.bad_words),
            priority=priority,
        )
        return Job(prompt=prompt, request=request)

    def _bad_sequences(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Each text as it is spelled at the start of a line and after a space."""
        spellings = [text for word in words for text in (word, " " + word.lstrip())]
        encode = self._tokenizer.encode
        sequences = [tuple(encode(text, add_special_tokens=False, parse_special=False)) for text in spellings]
        return tuple(dict.fromkeys(each for each in sequences if each))


_BITS = 63


class SeedSource:
    """Draws one seed after another; with a seed of its own, always the same ones in the same order."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._counter = itertools.count()

    def draw(self) -> int:
        """The next seed, 0 <= seed < 2**63."""
        if self._seed is None:
            return secrets.randbits(_BITS)
        digest = hashlib.blake2b(f"{self._seed}:{next(self._counter)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
