"""Splits a model over ranks: heads, the inner elements of feeds and the rows of the head are divided, all else stands on every rank.

Queries, keys, values, gate and up are split by their outputs, whole KV heads at a time, and what leads back to the residual stream by its
inputs (Shoeybi et al. 2019). So a rank's part is a model of the same kind with smaller numbers, and one all-reduce follows each mixer and each feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.layer_spec import AttentionSpec, DeltaSpec, DenseSpec, Feed, LatentSpec, LayerSpec, Mixer
from nanoserve.ports.model_spec import ModelSpec

SETTING = "tensor_parallel_size"


def split_spec(spec: ModelSpec, size: int) -> ModelSpec:
    """The model as each of `size` ranks computes it; the vocabulary remains whole.

    Raises `BadValueError` for what cannot be split, or not in so many parts.
    """
    if size == 1:
        return spec
    layers = tuple(
        LayerSpec(_split_mixer(layer.mixer, spec, size), _split_feed(layer.feed, spec, size))
        for layer in spec.layers
    )
    return attrs.evolve(spec, layers=layers)


def _split_mixer(mixer: Mixer, spec: ModelSpec, size: int) -> AttentionSpec:
    if isinstance(mixer, (LatentSpec, DeltaSpec)):
        kind = "latent attention" if isinstance(mixer, LatentSpec) else "delta nets"
        raise BadValueError(
            SETTING, f"{kind} ({spec.architecture}) cannot be split over ranks yet; ask for 1"
        )
    if mixer.qk_norm == "vector":
        message = f"{spec.architecture} norms the queries of all heads together, which cannot be split over ranks yet; ask for 1"
        raise BadValueError(SETTING, message)
    return attrs.evolve(
        mixer,
        num_heads=mixer.num_heads // size,
        num_kv_heads=_divided(mixer.num_kv_heads, "KV heads", spec, size),
    )


def _split_feed(feed: Feed, spec: ModelSpec, size: int) -> Feed:
    own = _divided(feed.size, "elements of the feeds", spec, size)
    if isinstance(feed, DenseSpec):
        return attrs.evolve(feed, size=own)
    return attrs.evolve(
        feed, size=own, shared_size=_divided(feed.shared_size, "elements of shared experts", spec, size)
    )


def _divided(count: int, what: str, spec: ModelSpec, size: int) -> int:
    if count % size:
        raise BadValueError(SETTING, f"must divide the {count} {what} of {spec.architecture}, got {size}")
    return count // size


def share(count: int, rank: int, size: int) -> slice:
    """A rank's part of so many rows: the last ranks may have fewer of them, or none."""
    each = -(-count // size)
    return slice(min(rank * each, count), min((rank + 1) * each, count))


@attrs.frozen(eq=False)
class Slices:
    """Where a rank's tensors lie in those of a checkpoint.

    Attributes:
        wholes, whole_stacks: the tensors of the checkpoint, as the whole model would have them; they have shapes and no memory.
        sections: by name, of tensors that hold several matrices one behind another, the sizes that those have on one rank.
    """

    rank: int
    size: int
    wholes: Mapping[str, Tensor]
    whole_stacks: Mapping[str, tuple[Tensor, Sequence[str]]]
    sections: Mapping[str, Sequence[int]]

    def pairs(self, name: str, stored: Tensor, destination: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of a stored tensor, and of the destination that each of them fills; a mapped file is read only where they lie."""
        divided = [dim for dim, count in enumerate(stored.shape) if destination.shape[dim] != count]
        if not divided:
            yield stored, destination
            return
        [dim] = divided
        wholes = [own * self.size for own in self.sections.get(name, ())] or [stored.shape[dim]]
        sources, targets = torch.split(stored, wholes, dim), [destination]
        if len(wholes) > 1:
            targets = list(torch.split(destination, list(self.sections[name]), dim))
        for source, target in zip(sources, targets, strict=True):
            own = share(source.shape[dim], self.rank, self.size)
            yield source.narrow(dim, own.start, own.stop - own.start), target
