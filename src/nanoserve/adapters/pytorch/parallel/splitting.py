"""Which part of a model's tensors a rank has; `models.split_spec` says which part of the model.

Queries, keys, values, gate and up are split by their outputs, whole KV heads at a time, and what leads back to the residual stream by its
inputs (Shoeybi et al. 2019). So a rank's part is a model of the same kind with smaller numbers, and one all-reduce follows each mixer and each feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor

SETTING = "tensor_parallel_size"


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
