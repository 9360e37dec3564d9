"""Modules that a checkpoint fills: each names its tensors, and changes them after loading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear import Linear

Storable = Sequence[tuple[nn.Module, str]]
"""Parameters, by module and name, that are kept as a checkpoint stores them either all or not at all."""


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

    def storable(self) -> Iterable[Storable]:
        """The parameters that may stay as a checkpoint stores them; parameter `x` then has its scales in `x_scales`."""
        return [[(each, "weight")] for each in self.modules() if isinstance(each, Linear)]

    def kept_scales(self) -> Tensor | None:
        """Float32 [2, num_kv_heads]: scales of keys and values that a cache keeps in 8-bit floats; None where it keeps none."""
        return None

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
