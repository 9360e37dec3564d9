"""The common part of the cases of all operations: random and poisoned tensors, caches of NaN, and results beside what they should be.

The same cases run small in the tests, in every dtype on a GPU, and with a model's own dimensions before it is served.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.paged import HeadTransform, PagedCache
from nanoserve.kernels.stored import BIAS, BLOCK, Form, StoredWeight, scale_count

POISON: Final = -7
"""What integers are before a kernel writes them; floats are NaN."""
LAYERS: Final = 2
"""Layers of a pool of blocks; caches are those of the last one."""


class Comparison(NamedTuple):
    """One result of a kernel.

    Attributes:
        case: which one, with its shapes, to be read by a person.
        got: what the kernel made.
        wanted: what the reference made, in the same shape; float32 unless `exact`.
        exact: whether nothing is rounded on the way, so that every element has to be equal.
    """

    case: str
    got: Tensor
    wanted: Tensor
    exact: bool = False


def compare_around_poison(
    case: str, got: Tensor, wanted: Tensor, *, exact: bool = False
) -> Iterator[Comparison]:
    """Results where `wanted` is a number, and whether all else is still NaN."""
    yield Comparison(case, got.nan_to_num(0.0), wanted.nan_to_num(0.0), exact)
    yield Comparison(f"what is not written of {case}", got.isnan(), wanted.isnan(), exact=True)


def shape_of(tensor: Tensor) -> str:
    """Its sizes, to be read by a person."""
    return " x ".join(str(size) for size in tensor.shape)


class Inputs:
    """Tensors on one device, floats in one dtype, the same ones for the same seed.

    Attributes:
        launches: how a kernel is launched that takes `pdl`: without, and with it where that is asked for.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, *, pdl: bool = False, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self.pdl = pdl
        self.launches = (False, True) if pdl else (False,)
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Random numbers of mean 0 and variance 1."""
        return torch.randn(shape, device=self.device, generator=self._generator).to(dtype or self.dtype)

    def normal_like(self, other: Tensor) -> Tensor:
        """Random numbers of another tensor's shape and size: in a sum neither hides the other."""
        return self.normal(*other.shape) * other.square().mean().sqrt().to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Random int32 from `low` on, below `high`."""
        return torch.randint(
            low, high, shape, device=self.device, dtype=torch.int32, generator=self._generator
        )

    def shuffled(self, count: int) -> list[int]:
        """The numbers below `count` in random order."""
        return torch.randperm(count, device=self.device, generator=self._generator).tolist()

    def these(self, values: object, dtype: torch.dtype = torch.int32) -> Tensor:
        """Given numbers, on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def poisoned(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor whose every element shows if no kernel writes it."""
        dtype = dtype or self.dtype
        poison = torch.nan if dtype.is_floating_point else POISON
        return torch.full(shape, poison, dtype=dtype, device=self.device)

    def settle(self) -> None:
        """Wait for the device: under PDL a kernel reads some of its inputs while the kernels before it still run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_stored(inputs: Inputs, form: Form, *shape: int) -> StoredWeight:
    """A weight that keeps what passes through it about as large as it was."""
    *others, width = shape
    if form == "mxfp4":
        numbers = inputs.integers(0, 256, *others, width // 2).to(torch.uint8)
        usual = BIAS - round(math.log2(3 * width**0.5))
        exponents = inputs.integers(usual - 1, usual + 2, *others, scale_count(form, width))
        return StoredWeight(numbers, exponents.to(torch.uint8))
    numbers = (8 * inputs.normal(*others, width, dtype=torch.float32)).to(torch.float8_e4m3fn)
    scales = inputs.normal(*others, -(-width // BLOCK), dtype=torch.float32) * (width**-0.5 / 8)
    return StoredWeight(numbers, scales)


class Heads(NamedTuple):
    """The dimensions of attention in one kind of layer.

    Attributes:
        window: None, or how many tokens a query sees at most, itself included.
        norm: whether each query and key head is normed.
        eps: of that norm.
        rotations: float32 [positions, head_dim], cosines and then sines; random ones if None.
        multiplier: what scores are multiplied with; None for head_dim ** -0.5.
        soft_cap: as in `paged.attend`; `sinks`, whether there are random ones.
        norm_dtype: of the norms' weights; None for that of the heads.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int | None = None
    norm: bool = False
    eps: float = 1e-6
    rotations: Tensor | None = None
    multiplier: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    norm_dtype: torch.dtype | None = None

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads and {self.num_kv_heads} KV heads of {self.head_dim}"
        parts = (f", window {self.window}", f", scores below {self.soft_cap}", ", sinks")
        present = (self.window, self.soft_cap, self.sinks)
        shown = "".join(part for part, there in zip(parts, present, strict=True) if there)
        return f"{heads}, blocks of {self.block_size}{shown}"

    def scoring(self, inputs: Inputs) -> dict[str, Any]:
        """What attention kernels ask for by name: how products of queries and keys become weights."""
        return {
            "scale": self.head_dim**-0.5 if self.multiplier is None else self.multiplier,
            "soft_cap": self.soft_cap,
            "sinks": 3 * inputs.normal(self.num_heads) if self.sinks else None,
        }

    def first_seen(self, position: int) -> int:
        """The first position that the query at `position` sees."""
        return 0 if self.window is None else max(0, position + 1 - self.window)

    def projections(self, inputs: Inputs, tokens: int) -> Tensor:
        """Random queries, keys and values of so many tokens, as they come from one product: the first of wider rows."""
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return inputs.normal(tokens, width + self.num_heads * self.head_dim)[:, :width]

    def transform(self, inputs: Inputs, positions: int) -> HeadTransform:
        """Rotations and the weights of norms; random weights, as real ones may make softmax all but hard."""
        rotations = self.rotations
        if rotations is None:
            angles = inputs.normal(positions, self.head_dim // 2, dtype=torch.float32)
            rotations = torch.cat((angles.cos(), angles.sin()), dim=1)
        dtype = self.norm_dtype or inputs.dtype
        q_norm, k_norm = (
            1 + 0.2 * inputs.normal(self.head_dim, dtype=dtype) if self.norm else None for _ in "qk"
        )
        return HeadTransform(rotations, q_norm, k_norm, self.eps)


def paged_cache(
    inputs: Inputs, heads: Heads, spans: Sequence[tuple[int, int]], *, unwritten: int = 0
) -> PagedCache:
    """A pool of blocks that is NaN but for random keys and values of each row at the positions [first, end) of its span.

    Block 0 is that of the last row, the sink, to which padding belongs; the last block belongs to no row, and unused
    table entries name it. The last `unwritten` positions of each span get a place, but stay NaN.
    """
    size, width = heads.block_size, max(-(-end // heads.block_size) for _, end in spans)
    columns = [range(first // size, -(-end // size)) for first, end in spans]
    total = sum(len(each) for each in columns)
    free = iter(inputs.shuffled(total))
    table = [[0 if row == len(spans) else total + 1] * width for row in range(len(spans) + 1)]
    for row, used in enumerate(columns):
        for column in used:
            table[row][column] = 1 + next(free)
    pool = inputs.poisoned(total + 2, LAYERS, 2, heads.num_kv_heads, size, heads.head_dim)
    keys, values, tables = pool[:, -1, 0], pool[:, -1, 1], inputs.these(table)
    for row, (first, end) in enumerate(spans):
        positions = torch.arange(first, max(first, end - unwritten), device=inputs.device)
        for each in (keys, values):
            numbers = inputs.normal(len(positions), heads.num_kv_heads, heads.head_dim)
            each[tables[row, positions // size], :, positions % size] = numbers
    return PagedCache(keys, values, tables, heads.window)


def copy_apart(blocks: Tensor) -> Tensor:
    """A copy of blocks that are as far apart as those."""
    return torch.empty_strided(blocks.shape, blocks.stride(), dtype=blocks.dtype, device=blocks.device).copy_(
        blocks
    )


class LatentHeads(NamedTuple):
    """The dimensions of latent attention.

    Attributes:
        nope_dim: elements of a head's query and key without position.
        rotations: float32 [positions, rope_dim], cosines and then sines; random ones if None.
    """

    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    block_size: int = 16
    eps: float = 1e-6
    rotations: Tensor | None = None

    def __str__(self) -> str:
        parts = f"{self.nope_dim} + {self.rope_dim} elements, values of {self.value_dim}"
        return f"{self.num_heads} heads of {parts}, latents of {self.latent_dim}, blocks of {self.block_size}"

    @property
    def width(self) -> int:
        """Elements of a cache entry, and of an absorbed query."""
        return self.latent_dim + self.rope_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float((self.nope_dim + self.rope_dim) ** -0.5)

    def cache(self, inputs: Inputs, lengths: Sequence[int], *, unwritten: int = 0) -> LatentCache:
        """A pool that is NaN but for random entries of rows of so many tokens; see `paged_cache`."""
        heads = Heads(1, 1, self.width, self.block_size)
        cache = paged_cache(inputs, heads, [(0, length) for length in lengths], unwritten=unwritten)
        return LatentCache(cache.keys[:, 0], cache.tables, self.latent_dim)

    def turns(self, inputs: Inputs, positions: int) -> Tensor:
        """Cosines and sines of so many positions."""
        if self.rotations is not None:
            return self.rotations
        angles = inputs.normal(positions, self.rope_dim // 2, dtype=torch.float32)
        return torch.cat((angles.cos(), angles.sin()), dim=1)
