"""The token embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn


class Embedding(nn.Module):
    """One learned vector per token id."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """int64 [T] to [T, hidden]."""
        return F.embedding(token_ids, self.weight)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there."""
        return {"weight": self.weight}
