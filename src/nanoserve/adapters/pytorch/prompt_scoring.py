"""Log-probabilities of prompts, gathered chunk by chunk.

The hidden state at position p predicts the token at p + 1, which is in the row's list already. So a chunk scores the tokens at start + 1 to start + length, the
first one of the next chunk among them, and no hidden state is kept from one chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.sampling import Scores, score_tensors
from nanoserve.ports.step import AdmittedRow, Chunk, TokenLogprobs

TOKENS_AT_ONCE = 128
"""Bounds the memory for logits: a chunk of thousands of tokens times a large vocabulary would take gigabytes."""


@attrs.frozen(eq=False)
class PromptScores:
    """Scores of the tokens of `row` from position `first` on."""

    row: int
    first: int
    scores: Scores


def read_scores(found: Iterable[PromptScores]) -> dict[int, dict[int, TokenLogprobs]]:
    """Scores on the host, by row and position."""
    read: dict[int, dict[int, TokenLogprobs]] = {}
    for each in found:
        read.setdefault(each.row, {}).update(dict(enumerate(each.scores.read(), start=each.first)))
    return read


class PromptScoring:
    """Prompt log-probabilities of the rows that `asked`: how many of the likeliest tokens beside each, and the prompt's length.

    They come from the `scores` of what is generated, with the same bits.
    """

    def __init__(self, scores: Callable[[Tensor, Tensor, Sequence[int]], Scores] = score_tensors) -> None:
        self._scores = scores
        self.asked: dict[int, tuple[int, int]] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        top = admitted.sampling.prompt_logprobs
        if top is not None:
            self.asked[admitted.row] = (top, admitted.num_prompt_tokens)

    def release(self, row: int) -> None:
        self.asked.pop(row, None)

    def asks(self, chunks: tuple[Chunk, ...]) -> bool:
        """True if any of these chunks' rows asks."""
        return any(chunk.row in self.asked for chunk in chunks)

    def score(
        self, chunks: tuple[Chunk, ...], hidden: Tensor, tokens: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> list[PromptScores]:
        """Score the prompt tokens that a step's chunks predict.

        Args:
            chunks: the step's chunks, whose tokens come first in it.
            hidden: [T, hidden], the step's hidden states.
            tokens: the rows' token lists, int32 or int64 [rows, length].
            logits: hidden states [S, hidden] to [S, vocab], of the dtype of those that are drawn from: sums of another have another order.
        """
        found: list[PromptScores] = []
        offset = 0
        for chunk in chunks:
            if chunk.row in self.asked:
                found += self._score_chunk(chunk, hidden[offset : offset + chunk.length], tokens, logits)
            offset += chunk.length
        return found

    def _score_chunk(
        self, chunk: Chunk, hidden: Tensor, tokens: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> list[PromptScores]:
        top, num_prompt_tokens = self.asked[chunk.row]
        stop = min(chunk.start + chunk.length, num_prompt_tokens - 1)
        found = []
        for start in range(chunk.start, stop, TOKENS_AT_ONCE):
            end = min(start + TOKENS_AT_ONCE, stop)
            predicted = tokens[chunk.row, start + 1 : end + 1].long()
            values = logits(hidden[start - chunk.start : end - chunk.start])
            scores = self._scores(values, predicted, (top,) * (end - start))
            found.append(PromptScores(chunk.row, start + 1, scores))
        return found
