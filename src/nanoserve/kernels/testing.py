"""The harness of all cases: random inputs, poisoned outputs, caches of NaN, and results beside expected ones.

A case of an operation is a launch and its arguments by name, with a `Result` for each tensor that it has to leave. The same cases run small
in the tests, in every dtype on a GPU, and with a model's own dimensions before it is served.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

POISON: Final = -7
"""The value of integers before a kernel writes them; floats are NaN."""
MARGIN: Final = 16
"""Columns of poison beside logits: for strides that 16 does not divide Triton compiles another variant than serving launches."""
MOST_KEPT: Final = 1 << 20
"""Elements of inputs that are compared with their old values."""


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
    """Results where `wanted` is a number, and whether all else is still NaN; of 8-bit floats see `round_alike`."""
    if got.dtype.is_floating_point and got.dtype.itemsize == 1:
        got, wanted = round_alike(got, wanted, exact=exact)
        exact = True
    yield Comparison(case, got.nan_to_num(0.0), wanted.nan_to_num(0.0), exact)
    if wanted.is_floating_point():
        yield Comparison(f"what is not written of {case}", got.isnan(), wanted.isnan(), exact=True)


def round_alike(got: Tensor, wanted: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
    """8-bit floats and their expected values, in float32 and equal if they are right.

    They are right where they are what `wanted` is rounded to, or, unless `exact`, neighbours of that: what is rounded by a sixteenth may
    lie on either side of a boundary by its own last bit.
    """
    largest = torch.finfo(got.dtype).max
    wide, wanted = got.float(), wanted.float().clamp(-largest, largest)
    if exact:
        return wide, wanted.to(got.dtype).float()
    size = wanted.nan_to_num(0.0).square().mean().sqrt()
    near = (wide - wanted).abs() <= wanted.abs() / 8 + size / 64
    return wide.where(~near, wanted), wanted


class Result(NamedTuple):
    """The expected value of an argument after a launch.

    Attributes:
        wanted: what the reference makes, NaN where nothing is written; integers are compared exactly.
        before: what it holds before the launch; poison if None. Blocks that lie apart stay as far apart.
        exact: as in `Comparison`.
        dtype: of floats; None for that of `before`, or of the inputs.
        share: in the shape of `wanted`, how much of a difference counts; all of it if None.
        columns: how many of the last dimension the launch is given; all if None.
    """

    wanted: Tensor
    before: Tensor | None = None
    exact: bool = False
    dtype: torch.dtype | None = None
    share: Tensor | None = None
    columns: slice = slice(None)

    def prepare(self, inputs: Inputs) -> Tensor:
        """The memory that a launch finds, with one row of poison behind it unless blocks lie apart."""
        if self.before is not None and not self.before.is_contiguous():
            return copy_apart(self.before)
        usual = inputs.dtype if self.before is None else self.before.dtype
        dtype = (self.dtype or usual) if self.wanted.is_floating_point() else self.wanted.dtype
        whole = inputs.poisoned(len(self.wanted) + 1, *self.wanted.shape[1:], dtype=dtype)
        if self.before is not None:
            whole[:-1] = self.before
        return whole

    def compare(self, case: str, whole: Tensor) -> Iterator[Comparison]:
        """Compare the memory that was prepared, after the launch."""
        wanted, rows = self.wanted, len(self.wanted)
        if self.share is not None:
            wanted, whole = wanted * self.share, torch.cat((whole[:rows] * self.share, whole[rows:].float()))
        if len(whole) > rows:
            poison = torch.nan if wanted.is_floating_point() else POISON
            wanted = torch.cat((wanted, torch.full_like(wanted[:1], poison)))
        yield from compare_around_poison(
            case, whole, wanted, exact=self.exact or not wanted.is_floating_point()
        )


class _Scratch(NamedTuple):
    tensor: Tensor


def expect(wanted: Tensor, before: Tensor | None = None, **how: Any) -> Any:
    """A `Result`, in the place of the tensor that a launch gets."""
    return Result(wanted, before, **how)


def scratch(tensor: Tensor) -> Any:
    """Memory that a launch writes before it reads it, in the place of that tensor: poison before each launch."""
    return _Scratch(tensor)


def _given(argument: Any, wholes: dict[int, Tensor]) -> Any:
    """An argument with the tensors that were prepared in the place of its results."""
    if isinstance(argument, _Scratch):
        return argument.tensor.fill_(torch.nan if argument.tensor.is_floating_point() else POISON)
    if isinstance(argument, Result):
        whole = wholes[id(argument)]
        return whole[: len(argument.wanted)][..., argument.columns]
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        return type(argument)(*(_given(each, wholes) for each in argument))
    return argument


def _results(name: str, argument: Any) -> Iterator[tuple[str, Result]]:
    """The results in an argument, by their names."""
    if isinstance(argument, Result):
        yield name, argument
    elif isinstance(argument, tuple) and hasattr(argument, "_fields"):
        for field, each in zip(argument._fields, argument, strict=True):
            yield from _results(f"{name}.{field}", each)


def shape_of(tensor: Tensor) -> str:
    """Its sizes, to be read by a person."""
    return " x ".join(str(size) for size in tensor.shape)


class Inputs:
    """Tensors on one device, floats in one dtype, the same ones for the same seed; and the launches over them.

    Attributes:
        pdl: whether kernels that take `pdl` are launched with it as well.
        launches: with which `pdl` then.
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

    def compare(
        self, launch: Callable[..., object], case: str = "", /, *, chained: Any = False, **arguments: Any
    ) -> Iterator[Comparison]:
        """Compare what a launch leaves in each `Result` among its arguments, and that tensors beside them stay as they were.

        It runs over fresh poison, and again with `pdl` if it takes that and serving asks for it, or with that alone if serving launches
        it `chained` alone. A result that is two arguments is one tensor. Large tensors are weights, of which there is no room for a copy.
        """
        results = dict(each for name, argument in arguments.items() for each in _results(name, argument))
        kept = {
            name: (each, each.clone())
            for name, each in arguments.items()
            if isinstance(each, Tensor) and each.numel() <= MOST_KEPT
        }
        takes_pdl, launches = "pdl" in inspect.signature(launch).parameters, self.launches[-chained:]
        for how in [{"pdl": pdl} for pdl in launches] if takes_pdl else [{}]:
            wholes = {id(each): each.prepare(self) for each in results.values()}
            given = {name: _given(each, wholes) for name, each in arguments.items()}
            self.settle()
            launch(**given, **how)
            for name, each in results.items():
                yield from each.compare(f"{name}, {shape_of(each.wanted)} {case}", wholes[id(each)])
            for name, (now, before) in kept.items():
                unchanged = (now == before) | (now != now)  # noqa: PLR0124 - NaN is not
                yield Comparison(f"{name} stays, {case}", unchanged, torch.ones_like(unchanged), exact=True)


def copy_apart(blocks: Tensor) -> Tensor:
    """A copy of blocks that are as far apart as those."""
    apart = torch.empty_strided(blocks.shape, blocks.stride(), dtype=blocks.dtype, device=blocks.device)
    return apart.copy_(blocks)
