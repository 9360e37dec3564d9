"""A vocabulary of bytes and marks for llguidance, and answers that a grammar allows."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

FIRST_MARK = 256
MOST_STEPS = 1_500
ENDERS = b'"}])\n<,'


class Vocabulary:
    """Every byte, then the marks as special tokens, then the end of sequence.

    It has what llguidance asks of a tokenizer.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self.ids = {mark: FIRST_MARK + place for place, mark in enumerate(marks)}
        self.tokens = [bytes([byte]) for byte in range(256)] + [mark.encode() for mark in marks] + [b"</s>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = list(range(FIRST_MARK, len(self.tokens)))
        self.inner = LLTokenizer(TokenizerWrapper(self), slices=[])

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def encode(self, written: str) -> list[int]:
        """Marks as their tokens, everything else as bytes."""
        ids: list[int] = []
        while written:
            mark = next((mark for mark in self.ids if written.startswith(mark)), "")
            ids += [self.ids[mark]] if mark else list(written[0].encode())
            written = written[len(mark) or 1 :]
        return ids

    def matcher(self, lark: str) -> LLMatcher:
        matcher = LLMatcher(self.inner, LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
        return matcher

    def accepts(self, lark: str, written: str) -> bool:
        matcher = self.matcher(lark)
        ids = self.encode(written)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def answer(self, lark: str, seed: int) -> str | None:
        """A random answer that the grammar allows; None where it did not come to an end in time."""
        draw = random.Random(seed)
        matcher = self.matcher(lark)
        written = b""
        for _ in range(MOST_STEPS):
            mask = matcher.compute_bitmask()
            allowed = [token for token in range(len(self.tokens)) if mask[token // 8] >> token % 8 & 1]
            plain = [token for token in allowed if token < FIRST_MARK and 32 <= token < 127]
            enders = [token for token in allowed if token >= FIRST_MARK or token in ENDERS]
            if matcher.is_accepting() and draw.random() < 0.3:
                return written.decode()
            choices = enders if enders and draw.random() < 0.5 else plain or allowed
            token = draw.choice(
                [each for each in choices if each != self.eos_token_id] or [self.eos_token_id]
            )
            if token == self.eos_token_id:
                return written.decode()
            assert matcher.consume_token(token)
            written += self.tokens[token]
        return None
