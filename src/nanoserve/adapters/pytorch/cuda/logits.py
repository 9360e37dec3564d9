"""Logits of hidden states, for tokens that are drawn from and for prompts that are scored."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.sums import Sums
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.kernels.linear.launch import invariant_ways


class Logits:
    """The head of a model, multiplied as `many` rows are; several ranks have the columns of each."""

    def __init__(
        self, model: DecoderModel, arena: Arena, space: Workspace, sums: Sums, many: ManyRows
    ) -> None:
        self._head, self._arena, self._space, self._sums = model.head, arena, space, sums
        self._many = many
        self._divisor, self._cap = model.spec.logit_divisor, model.spec.logit_soft_cap

    def apart(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] of normed hidden states [S, hidden]; in memory of their own."""
        return self.of(hidden, hidden.new_empty(len(hidden), self._space.logits.shape[1]))

    def choose(self, hidden: Tensor, count: int) -> Tensor:
        """The rows [count, hidden] of hidden states [T, hidden] that the arena's `logits_indices` choose."""
        indices, out = self._arena.logits_indices[:count], self._space.chosen[:count]
        return torch.index_select(hidden, 0, indices, out=out)

    def of(self, chosen: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits [S, vocab] of normed hidden states [S, hidden], in `out` or the workspace."""
        out = self._space.logits[: len(chosen)] if out is None else out
        columns = self._sums.columns(out, self._head.out_features)
        self._many.products.multiply(self._space, chosen, self._head, columns)
        self._sums.gather(out)
        return self.cap(out)

    def invariant_ways(self, most: int) -> tuple[int, ...]:
        """Numbers of hidden states up to `most`, one for each way in which an invariant step computes their logits."""
        return invariant_ways(self._head.matrix, self._space.stream, most)

    def cap(self, logits: Tensor) -> Tensor:
        """Divided and capped, in place; each step is rounded to the dtype of the logits, as in transformers."""
        cap = self._cap
        if self._divisor != 1.0:
            logits.div_(self._divisor)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
