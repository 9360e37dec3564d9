"""Names of checkpoint tensors, composed from the layers: each layer says which of its tensors a file fills."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.linear import Linear


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, each name behind `prefix` and a dot."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def rows(linear: Linear, parts: Mapping[str, int]) -> dict[str, Tensor]:
    """Split a fused linear layer into the named layers that checkpoints store, by their numbers of rows."""
    tensors: dict[str, Tensor] = {}
    for kind, fused in linear.checkpoint_tensors().items():
        for name, part in zip(parts, torch.split(fused, list(parts.values())), strict=True):
            tensors[f"{name}.{kind}"] = part
    return tensors
