"""Modules that a checkpoint fills: each names its tensors, and changes them after loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear import Linear


class Stored(nn.Module):
    """A module with tensors that a checkpoint fills."""

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Those tensors, by their names there."""
        raise NotImplementedError

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        """Tensors that a checkpoint may hold instead of several of those: each one's destination, and the names of those."""
        return {}

    def sections(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the matrices in those tensors that hold several, one behind another, each of which is split over ranks."""
        return {}

    def fill_plainly(self) -> None:
        """Without a checkpoint: set plain values where random noise would be useless, such as in norms."""

    def arrange(self) -> None:
        """After loading, change tensors that this engine holds in another form than checkpoints."""


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with each name behind `prefix` and a dot."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def rows(linear: Linear, parts: Mapping[str, int]) -> dict[str, Tensor]:
    """Split a fused linear layer into the named layers that checkpoints store, by their numbers of rows."""
    tensors: dict[str, Tensor] = {}
    for kind, fused in linear.checkpoint_tensors().items():
        for name, part in zip(parts, torch.split(fused, list(parts.values())), strict=True):
            tensors[f"{name}.{kind}"] = part
    return tensors
