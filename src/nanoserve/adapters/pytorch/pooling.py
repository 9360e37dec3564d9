"""Vectors of prompts, gathered chunk by chunk.

What is kept between two chunks stands by where its chunk begins, so that a step that is tried again adds nothing twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.step import AdmittedRow, Chunk, StepResult

Logits = Callable[[Tensor], Tensor]
"""Hidden states [S, hidden] to float32 [S, vocab]."""
ROWS_AT_ONCE = 128
"""Bounds the memory for logits."""


@attrs.frozen(eq=False)
class Pooled:
    """The vectors of some rows, float32 [P, width]."""

    rows: tuple[int, ...]
    vectors: Tensor


def add_pooled(result: StepResult, pooled: Sequence[Pooled]) -> StepResult:
    """The result with the vectors, which are brought to the host; rows with one that is not finite are broken."""
    vectors, broken = {**result.pooled}, [*result.broken]
    for each in pooled:
        vectors |= zip(each.rows, map(tuple, each.vectors.tolist()), strict=True)
        finite = each.vectors.isfinite().all(1).tolist()
        broken += [row for row, is_good in zip(each.rows, finite, strict=True) if not is_good]
    return attrs.evolve(result, pooled=vectors, broken=tuple(broken))


class RowPooling:
    """Vectors of the rows that `asked`, and how."""

    def __init__(self, logits: Logits, classifier: Tensor | None) -> None:
        self._logits, self._classifier = logits, classifier
        self.asked: dict[int, Pooling] = {}
        self._parts: dict[int, dict[int, Tensor]] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row; nothing of its last tenant stays."""
        self.release(admitted.row)
        if admitted.pooling is not None:
            self.asked[admitted.row] = admitted.pooling
            self._parts[admitted.row] = {}

    def release(self, row: int) -> None:
        """Forget a row."""
        self.asked.pop(row, None)
        self._parts.pop(row, None)

    def pool(self, chunks: Sequence[Chunk], hidden: Tensor) -> list[Pooled]:
        """The vectors that a step's chunks complete.

        Args:
            chunks: the step's chunks, whose tokens come first in it.
            hidden: [T, hidden], the step's hidden states behind the last norm.
        """
        ends = list(itertools.accumulate(chunk.length for chunk in chunks))
        states = [hidden[end - chunk.length : end] for chunk, end in zip(chunks, ends, strict=True)]
        for chunk, each in zip(chunks, states, strict=True):
            if chunk.row in self.asked:
                self._keep(chunk, each)
        found: dict[Pooling, list[tuple[Chunk, int]]] = {}
        for chunk, end in zip(chunks, ends, strict=True):
            if chunk.pools:
                found.setdefault(self.asked[chunk.row], []).append((chunk, end))
        return [self._finish(pooling, members, hidden) for pooling, members in found.items()]

    def _keep(self, chunk: Chunk, states: Tensor) -> None:
        kind = self.asked[chunk.row].kind
        if kind is PoolingKind.MEAN:
            self._parts[chunk.row][chunk.start] = states.sum(0, dtype=torch.float32)
        elif kind is PoolingKind.FIRST and chunk.start == 0:
            self._parts[chunk.row][0] = states[0].to(torch.float32, copy=True)

    def _finish(self, pooling: Pooling, members: list[tuple[Chunk, int]], hidden: Tensor) -> Pooled:
        rows = tuple([chunk.row for chunk, _ in members])
        if pooling.kind is PoolingKind.LAST:
            last = torch.tensor([end - 1 for _, end in members], device=hidden.device)
            vectors = hidden.index_select(0, last).float()
        else:
            vectors = torch.stack([torch.stack([*self._parts[row].values()]).sum(0) for row in rows])
        if pooling.kind is PoolingKind.MEAN:
            lengths = [chunk.start + chunk.length for chunk, _ in members]
            vectors /= torch.tensor(lengths, device=hidden.device)[:, None]
        if pooling.classify:
            assert self._classifier is not None
            vectors = (vectors.to(self._classifier.dtype) @ self._classifier.t()).float()
        if pooling.token_ids:
            vectors = self._scores(vectors.to(hidden.dtype), [*pooling.token_ids])
        return Pooled(rows, vectors)

    def _scores(self, vectors: Tensor, token_ids: list[int]) -> Tensor:
        """The logits of some tokens, float32 [P, tokens]."""
        return torch.cat([self._logits(each)[:, token_ids] for each in torch.split(vectors, ROWS_AT_ONCE)])
