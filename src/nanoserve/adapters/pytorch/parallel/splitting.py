"""A rank's part of a model's tensors; `models.split_spec` has its part of the model.

Queries, keys, values, gate and up are split by their outputs, whole KV heads at a time, and what leads back to the residual stream by its
inputs (Shoeybi et al. 2019). So a rank's part is a model of the same kind with smaller numbers, and one all-reduce follows each mixer and each feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import attrs
from torch import Tensor

from nanoserve.kernels.forms import Form

SETTING, EXPERTS = "tensor_parallel_size", "expert_parallel"


def share(count: int, rank: int, size: int) -> slice:
    """A rank's part of this many rows: the last ranks may have fewer of them, or none."""
    each = -(-count // size)
    return slice(min(rank * each, count), min((rank + 1) * each, count))


@attrs.frozen(eq=False)
class Slices:
    """Where a rank's tensors lie in those of a checkpoint.

    Attributes:
        wholes, whole_stacks: the tensors of the checkpoint, as the whole model would have them; they have shapes and no memory.
        sections: by name, of tensors that hold several matrices one behind another, the sizes that those have on one rank.
        others: names of tensors that other ranks alone have.
    """

    rank: int
    size: int
    wholes: Mapping[str, Tensor]
    whole_stacks: Mapping[str, tuple[Tensor, Sequence[str]]]
    sections: Mapping[str, Sequence[int]]
    others: AbstractSet[str] = frozenset()

    def is_elsewhere(self, name: str) -> bool:
        """True if only other ranks have a tensor, or the tensor that it belongs to, such as scales."""
        return bool(self.others) and f"{name.rpartition('.')[0]}.weight" in self.others

    def held(self, whole: int, own: int) -> slice:
        """The matrices of a stack of so many that this rank has."""
        return slice(whole) if own == whole else share(whole, self.rank, self.size)

    def cuts(self, name: str, whole: Sequence[int], own: Sequence[int]) -> Iterator[tuple[int, slice, slice]]:
        """The parts of a tensor of the shape `whole` that this rank's has: along which dimension, from where, and to where in one of the shape `own`."""
        divided = [dim for dim, count in enumerate(whole) if own[dim] != count]
        if not divided:
            yield 0, slice(0, whole[0]), slice(0, whole[0])
            return
        [dim] = divided
        begin = place = 0
        for count in [size * self.size for size in self.sections.get(name, ())] or [whole[dim]]:
            part = share(count, self.rank, self.size)
            end = place + part.stop - part.start
            yield dim, slice(begin + part.start, begin + part.stop), slice(place, end)
            begin, place = begin + count, end

    def pairs(self, name: str, stored: Tensor, destination: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of a stored tensor, and of the destination that each of them fills; a mapped file is read only where they lie."""
        if stored.shape == destination.shape:
            yield stored, destination
            return
        for dim, source, place in self.cuts(name, stored.shape, destination.shape):
            yield part_of(stored, dim, source), part_of(destination, dim, place)

    def fill(self, name: str, stored: Tensor, destination: Tensor) -> None:
        """Copy this rank's part of a tensor."""
        for source, target in self.pairs(name, stored, destination):
            target.copy_(source)

    def fitting(self, forms: Mapping[str, Form], own: Mapping[str, Tensor]) -> dict[str, Form]:
        """The forms of those matrices whose groups no rank's part cuts; `own` are this rank's, still plain."""
        return {
            name: form
            for name, form in forms.items()
            if name in own and _fits(form, own[name], self.wholes[name])
        }


def part_of(tensor: Tensor, dim: int, part: slice) -> Tensor:
    """A view of some of a dimension."""
    return tensor.narrow(dim, part.start, part.stop - part.start)


def _fits(form: Form, own: Tensor, whole: Tensor) -> bool:
    if own.dim() > 2:
        return own.shape[1:] == whole.shape[1:]
    width, columns = own.shape[1], whole.shape[1]
    of_whole_groups = form.group >= columns or width % form.group == 0
    return width == columns or (of_whole_groups and width % form.multiple == 0)
