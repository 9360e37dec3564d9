"""Vectors of prompts, gathered chunk by chunk.

State between two chunks is kept by the position where its chunk begins, so a step that is tried again adds nothing twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import attrs
import torch
from torch import Tensor, nn

from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.step import AdmittedRow, Chunk, StepResult

Logits = Callable[[Tensor], Tensor]
"""Hidden states [S, hidden] to float32 [S, vocab]."""
ROWS_AT_ONCE = 128
"""Bounds the memory for logits."""


@attrs.frozen(eq=False)
class Pooled:
    """The vectors of some rows, float32 [P, width]; where each row has several, `counts` says how many, one behind the other."""

    rows: tuple[int, ...]
    vectors: Tensor
    counts: tuple[int, ...] | None = None


def add_pooled(result: StepResult, pooled: Sequence[Pooled]) -> StepResult:
    """The result with the vectors, which are brought to the host; rows with one that is not finite are broken."""
    vectors, broken = {**result.pooled}, [*result.broken]
    for each in pooled:
        host = each.vectors.cpu()
        parts = torch.split(host, [*each.counts] if each.counts else 1)
        vectors |= zip(each.rows, (tuple(part.flatten().tolist()) for part in parts), strict=True)
        finite = [bool(part.isfinite().all()) for part in parts]
        broken += [row for row, is_good in zip(each.rows, finite, strict=True) if not is_good]
    return attrs.evolve(result, pooled=vectors, broken=tuple(broken))


class RowPooling:
    """Vectors of the rows that `asked`, and how; `seconds` are where the second texts of rows that are pairs begin."""

    def __init__(self, logits: Logits, layers: Iterable[nn.Module]) -> None:
        """`layers` transform the vectors."""
        self._logits, self._layers = logits, tuple(layers)
        self.asked: dict[int, Pooling] = {}
        self.seconds: dict[int, int] = {}
        self._parts: dict[int, dict[int, Tensor]] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row; nothing of its last tenant stays."""
        self.release(admitted.row)
        if admitted.pooling is not None:
            self.asked[admitted.row] = attrs.evolve(admitted.pooling, second=0)
            self._parts[admitted.row] = {}
            if admitted.pooling.second:
                self.seconds[admitted.row] = admitted.pooling.second

    def release(self, row: int) -> None:
        self.asked.pop(row, None)
        self._parts.pop(row, None)
        self.seconds.pop(row, None)

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

    def single(self, chunks: Sequence[Chunk]) -> list[int] | None:
        """The one token of the step that the vector of each chunk that pools is made of, in order; None if one needs more."""
        found, token = [], 0
        for chunk in chunks:
            pooling = self.asked.get(chunk.row)
            kind = PoolingKind.LAST if pooling is None else pooling.kind
            is_whole = chunk.start == 0 and chunk.pools
            if kind is not PoolingKind.LAST and not (kind is PoolingKind.FIRST and is_whole):
                return None
            if chunk.pools:
                found.append(token if kind is PoolingKind.FIRST else token + chunk.length - 1)
            token += chunk.length
        return found

    def pool_single(self, chunks: Sequence[Chunk], states: Tensor) -> list[Pooled]:
        """The vectors of the chunks that pool, of the states [P, hidden] of the tokens that `single` has named."""
        found: dict[Pooling, list[tuple[int, int]]] = {}
        rows = [chunk.row for chunk in chunks if chunk.pools]
        for place, row in enumerate(rows):
            found.setdefault(self.asked[row], []).append((row, place))
        pooled = []
        for pooling, members in found.items():
            # Copied, as the next step computes where they are.
            chosen = states.clone() if len(found) == 1 else states[[place for _, place in members]]
            pooled.append(self._report(pooling, tuple([row for row, _ in members]), chosen, states.dtype))
        return pooled

    def _keep(self, chunk: Chunk, states: Tensor) -> None:
        kind = self.asked[chunk.row].kind
        if kind is PoolingKind.MEAN:
            self._parts[chunk.row][chunk.start] = states.sum(0, dtype=torch.float64)  # the same in any chunks
        elif kind is PoolingKind.ALL:
            self._parts[chunk.row][chunk.start] = self._through_layers(states)
        elif kind is PoolingKind.FIRST and chunk.start == 0:
            self._parts[chunk.row][0] = states[0].to(torch.float32, copy=True)

    def _finish(self, pooling: Pooling, members: list[tuple[Chunk, int]], hidden: Tensor) -> Pooled:
        rows = tuple([chunk.row for chunk, _ in members])
        if pooling.kind is PoolingKind.ALL:
            parts = [part for row in rows for part in self._parts[row].values()]
            return Pooled(rows, torch.cat(parts), tuple([chunk.start + chunk.length for chunk, _ in members]))
        if pooling.kind is PoolingKind.LAST:
            last = torch.tensor([end - 1 for _, end in members], device=hidden.device)
            vectors = hidden.index_select(0, last)
        else:
            vectors = torch.stack([torch.stack([*self._parts[row].values()]).sum(0) for row in rows])
        if pooling.kind is PoolingKind.MEAN:
            lengths = [chunk.start + chunk.length for chunk, _ in members]
            vectors = (vectors / torch.tensor(lengths, device=hidden.device)[:, None]).float()
        return self._report(pooling, rows, vectors, hidden.dtype)

    def _report(self, pooling: Pooling, rows: tuple[int, ...], vectors: Tensor, dtype: torch.dtype) -> Pooled:
        """The vectors as they are reported; the model computes in `dtype`."""
        if pooling.token_ids:
            return Pooled(rows, self._scores(vectors.to(dtype), [*pooling.token_ids]))
        return Pooled(rows, self._through_layers(vectors))

    def _through_layers(self, vectors: Tensor) -> Tensor:
        for layer in self._layers:
            vectors = layer(vectors)
        return vectors.float()

    def _scores(self, vectors: Tensor, token_ids: list[int]) -> Tensor:
        """The logits of some tokens, float32 [P, tokens]."""
        parts = torch.split(vectors, ROWS_AT_ONCE)
        return torch.cat([self._logits(each)[:, token_ids].float() for each in parts])
