"""Where the numbers of an adapter lie, so that they fit the products of a model.

Checkpoints name layers that are rows of one matrix here (q, k and v; gate and up), and the rows are put into the order in which kernels want
them. A product of several parts has a factor A for each, and B's rows say by their place which of them they read.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.devices import host_pages
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.lora.folder import Factors
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.parallel.splitting import Slices
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, fill, is_finite
from nanoserve.adapters.pytorch.weights.staging import PIECE_BYTES, count_lanes
from nanoserve.ports.errors import ModelLoadError

RANKS = (16, 32, 64, 128)
"""Ranks that adapters are padded to, for tensor cores."""
_SERIAL = 1 << 14
"""Numbers for which torch does not call its threads: all of them for each layer would take longer where cores are busy."""


def padded_rank(rank: int) -> int:
    """The rank that is computed for one."""
    return next(each for each in RANKS if each >= rank)


@attrs.frozen(eq=False)
class Site:
    """One product of a model, and where an adapter has its factors.

    Attributes:
        start_a, start_b: where A [parts, r, in_features] and B [out_features, r] begin, to be multiplied by r.
        runs: (first, last, part): rows of the product that read the same part of A, `last` not among them; all rows in order.
    """

    in_features: int
    out_features: int
    num_parts: int
    start_a: int
    start_b: int
    runs: tuple[tuple[int, int, int], ...]


@attrs.frozen(eq=False)
class _Place:
    """A linear layer of a checkpoint: a part of a site, and for each of its rows the row of the site; a slice if they follow one another.

    `starts` is where its A begins, and the first row of its B, to be multiplied by r.
    """

    site: Site
    part: int
    num_rows: int
    rows: Tensor | slice
    starts: tuple[int, int]


@attrs.frozen(eq=False)
class Layout:
    """All sites of a model.

    Attributes:
        sites: by the linear layer that computes the product.
        size: numbers of an adapter, to be multiplied by its rank.
        places: by the names of linear layers in a checkpoint.
        slices: where a rank's layers lie in the whole model's; None of a whole one.
    """

    sites: Mapping[Linear, Site]
    size: int
    places: Mapping[str, _Place]
    slices: Slices | None = None

    @classmethod
    def of(cls, model: DecoderModel) -> Layout:
        """The layout for a model as it computes, its layers packed and arranged."""
        sites: dict[Linear, Site] = {}
        places: dict[str, _Place] = {}
        size = 0
        for linear, parts in _named_rows(model):
            part_of = torch.empty(linear.out_features, dtype=torch.int64)
            for number, rows in enumerate(parts.values()):
                part_of[rows] = number
            numbers, lengths = torch.unique_consecutive(part_of, return_counts=True)
            ends = lengths.cumsum(0).tolist()
            runs = tuple(zip([0, *ends[:-1]], ends, numbers.tolist(), strict=True))
            start_b = size + len(parts) * linear.in_features
            site = Site(linear.in_features, linear.out_features, len(parts), size, start_b, runs)
            size = start_b + linear.out_features
            sites[linear] = site
            for number, (name, rows) in enumerate(parts.items()):
                run = slice(int(rows[0]), int(rows[-1]) + 1)
                is_run = torch.equal(rows, torch.arange(run.start, run.stop))
                starts = site.start_a + number * site.in_features, site.start_b + run.start
                places[name] = _Place(site, number, len(rows), run if is_run else rows, starts)
        return cls(sites, size, places, model.slices)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of every layer of the whole model that can be adapted, by its name in a checkpoint."""
        if self.slices is None:
            return {name: self._own_shape(name) for name in self.places}
        wholes = {name: self.slices.wholes[f"{name}.weight"].shape for name in self.places}
        return {name: (rows, columns) for name, (rows, columns) in wholes.items()}

    def _own_shape(self, name: str) -> tuple[int, int]:
        place = self.places[name]
        return place.num_rows, place.site.in_features

    @torch.inference_mode()
    def pack(self, factors: Mapping[str, Factors], dtype: torch.dtype, *, part: int = 0) -> LoraWeights:
        """An adapter's factors, or the `part` of them that a rank needs, as numbers of this layout, their scales in B.

        Raises `ModelLoadError`, of numbers that are not finite, too.
        """
        stored = {(len(each.a.data), half.dtype) for each in factors.values() for half in (each.a, each.b)}
        rank = padded_rank(max(each for each, _ in stored))
        weights = LoraWeights(rank, *host_pages([((rank * self.size,), dtype)]))  # zeros
        is_run = all(isinstance(self.places[name].rows, slice) for name in factors)
        if is_run and stored == {(rank, dtype)} and self.slices is None:
            self._fill(weights, factors)
        else:
            for name, factor in factors.items():
                self._put(weights, self.places[name], *self._stored(name, factor, part), factor.scale)
        if not is_finite(weights.numbers):
            parts = ((name, place, *weights.at(place.site)) for name, place in self.places.items())
            odd = next(n for n, at, a, b in parts if not (is_finite(a[at.part]) and is_finite(b[at.rows])))
            raise ModelLoadError(f"the factors of {odd!r} hold a number that is not finite")
        return weights

    def _fill(self, weights: LoraWeights, factors: Mapping[str, Factors]) -> None:
        """Read what is stored as it is computed to its place, in few calls: beside steps each waits for the interpreter's lock."""
        targets, scaled = list[tuple[StoredTensor, Tensor]](), dict[float, list[Tensor]]()
        for name, factor in factors.items():
            for half, start in zip((factor.a, factor.b), self.places[name].starts, strict=True):
                target = weights.numbers.narrow(0, weights.rank * start, half.data.numel())
                targets.append((half, target))
            scaled.setdefault(factor.scale, []).extend(torch.split(target, _SERIAL))
        targets.sort(key=lambda each: each[0].offset)  # nothing else lies between them
        runs = [[*run] for _, run in itertools.groupby(targets, lambda each: each[0].offset // PIECE_BYTES)]
        with ThreadPoolExecutor(count_lanes()) as pool:
            list(pool.map(lambda run: fill([to for _, to in run], run[0][0].file, run[0][0].offset), runs))
        for scale, numbers in scaled.items():
            torch._foreach_mul_(numbers, torch.tensor(scale))  # a bare number is rounded to their dtype first

    def _put(self, weights: LoraWeights, place: _Place, a: Tensor, b: Tensor, scale: float) -> None:
        to_a, to_b = weights.at(place.site)
        to_a, step = to_a[place.part, : len(a)], _SERIAL // len(a)
        torch._foreach_copy_(torch.split(to_a, step, dim=1), torch.split(a, step, dim=1))
        # Of the model's own dtype they are rounded once without a wider copy, too: torch multiplies halves by a number as floats.
        wide = b if b.dtype == to_b.dtype else b.to(torch.promote_types(b.dtype, torch.float32))
        scaled = torch._foreach_mul(torch.split(wide, step), scale)  # noqa: SLF001 - it has no public name
        if isinstance(place.rows, slice):
            torch._foreach_copy_(torch.split(to_b[place.rows, : len(a)], step), scaled)
        else:
            to_b[place.rows, : len(a)] = torch.cat(scaled).to(to_b.dtype)

    def _stored(self, name: str, factor: Factors, part: int) -> tuple[Tensor, Tensor]:
        """A and B, or a rank's part: some rows of B of a layer that is split by its outputs, some columns of A of one that is split by its inputs."""
        a, b = (torch.empty(half.shape, dtype=half.dtype) for half in (factor.a, factor.b))
        fill([a], factor.a.file, factor.a.offset)
        fill([b], factor.b.file, factor.b.offset)
        if self.slices is None:
            return a, b
        shape, slices = (len(b), a.shape[1]), attrs.evolve(self.slices, rank=part)
        cuts = list(slices.cuts(f"{name}.weight", shape, self._own_shape(name)))
        if cuts[0][0]:
            return torch.cat([a[:, source] for _, source, _ in cuts], dim=1), b
        return a, torch.cat([b[source] for _, source, _ in cuts])


@attrs.frozen(eq=False)
class LoraWeights:
    """An adapter's numbers in the order of a `Layout`, its rank padded."""

    rank: int
    numbers: Tensor

    def at(self, site: Site) -> tuple[Tensor, Tensor]:
        """A [parts, rank, in_features] and B [out_features, rank] of a site."""
        a = self.numbers.narrow(0, self.rank * site.start_a, self.rank * site.num_parts * site.in_features)
        b = self.numbers.narrow(0, self.rank * site.start_b, self.rank * site.out_features)
        return a.view(site.num_parts, self.rank, -1), b.view(-1, self.rank)

    def digest(self) -> bytes:
        """32 bytes, of all numbers."""
        pieces = torch.split(self.numbers.view(torch.uint8), PIECE_BYTES)
        with ThreadPoolExecutor(count_lanes()) as pool:
            found = pool.map(lambda piece: hashlib.sha256(piece.numpy()).digest(), pieces)
            return hashlib.sha256(b"".join([self.rank.to_bytes(1), *found])).digest()


def _named_rows(model: DecoderModel) -> Iterator[tuple[Linear, dict[str, Tensor]]]:
    """Each product with the checkpoint's layers that it is made of, and which of its rows are theirs, in their order.

    A copy of the model without memory has the numbers of its rows for weights, and arranges them as it would weights.
    """
    with torch.device("meta"):
        copy = type(model)(model.spec)
    twins = {
        twin.linear: product.linear
        for parts, twin_parts in zip(model.layers, copy.layers, strict=True)
        for part, twin_part in zip(parts, twin_parts, strict=True)
        for product, twin in zip(part.products(), twin_part.products(), strict=True)
    }
    by_memory: dict[int, Linear] = {}
    for linear in twins:
        numbers = torch.arange(linear.out_features, dtype=torch.float64)[:, None]
        linear.weight = nn.Parameter(numbers, requires_grad=False)
        by_memory[linear.weight.untyped_storage().data_ptr()] = linear
    named: dict[Linear, dict[str, Tensor]] = {linear: {} for linear in twins}
    for name, tensor in copy.checkpoint_tensors().items():
        if name.endswith(".weight") and not tensor.is_meta:
            rows = tensor[:, 0].long()
            named[by_memory[tensor.untyped_storage().data_ptr()]][name.removesuffix(".weight")] = rows
    with torch.inference_mode():
        copy.arrange()
    for linear, parts in named.items():
        now = torch.argsort(linear.weight[:, 0])
        yield twins[linear], {name: now[rows] for name, rows in parts.items()}
