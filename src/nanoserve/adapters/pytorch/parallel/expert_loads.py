"""How evenly whole experts that are divided over ranks are busy; every rank routes all tokens, so that each could say it for all."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor


class Loads(TypedDict, total=False):
    """As in `RunnerCounts`; empty if experts are not divided."""

    expert_tokens: dict[str, int]
    busiest_expert_tokens: int


class ExpertLoads:
    """Reads counts int64 [layers, ranks, experts of one] without waiting for the steps that add to them."""

    def __init__(self, counts: Tensor | None) -> None:
        self._counts = self._copy = counts
        if counts is not None and counts.is_cuda:
            self._copy = torch.empty_like(counts, device="cpu", pin_memory=True)
            self._stream = torch.cuda.Stream(counts.device)  # type: ignore[no-untyped-call]

    def read(self) -> Loads:
        """The loads so far; a step that runs on a GPU may be counted in part."""
        if self._counts is None or self._copy is None:
            return {}
        if self._counts.is_cuda:
            with torch.cuda.stream(self._stream):
                self._copy.copy_(self._counts, non_blocking=True)
            self._stream.synchronize()
        of_ranks = self._copy.sum(-1)
        by_rank = {str(rank): load for rank, load in enumerate(of_ranks.sum(0).tolist())}
        return {"expert_tokens": by_rank, "busiest_expert_tokens": int(of_ranks.amax(1).sum())}

    @torch.inference_mode()  # as the counts were made
    def forget(self) -> None:
        """Count from zero on, as before the first step that serves."""
        if self._counts is not None:
            self._counts.zero_()
