"""The values of the kernel check before serving: the model, the inputs of its cases, and a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.layers.rotary import make_rotaries
from nanoserve.kernels.linear import cases as linear
from nanoserve.kernels.testing import Comparison, Inputs
from nanoserve.ports.layer_spec import Rotation
from nanoserve.ports.model_spec import ModelSpec

T = TypeVar("T")
ROWS = (5, 33)
"""Numbers of rows on either side of where kernels change their shape."""
POSITIONS = 512
"""More than the rows have tokens that are rotated."""


@attrs.frozen(eq=False, kw_only=True)
class Bench:
    """One model, where it is.

    Attributes:
        model: a `DecoderModel`.
        block_size: tokens per block of the KV cache.
        deterministic: whether serving uses the kernels whose results do not depend on the batch.
        pdl: whether serving launches the kernels of decoding steps with programmatic dependent launch.
        ranks: how many GPUs compute the model together.
        max_width: tokens of a decoding row, drafts included; 1 where there are none.
        lora_rank: the largest rank of an adapter, a multiple of 16; 0 if there are none.
    """

    model: Any
    block_size: int
    deterministic: bool = False
    pdl: bool = False
    ranks: int = 1
    lora_rank: int = 0
    max_width: int = 1
    inputs: Inputs = attrs.field(init=False)
    products: tuple[linear.LinearCase, ...] = attrs.field(init=False)

    @inputs.default
    def _make_inputs(self) -> Inputs:
        weight = self.model.embedding.weight
        return Inputs(weight.device, weight.dtype, pdl=self.pdl)

    @products.default
    def _find_products(self) -> tuple[linear.LinearCase, ...]:
        """Each shape of product once, and the head; products without a norm before them are added to the residual stream."""
        found = []
        for each in self.model.products():
            weight, eps = (None, 0.0) if each.norm is None else (each.norm.weight, each.norm.eps)
            own = each.linear
            found.append(
                linear.LinearCase(each.name, own.matrix, own.bias, weight, eps, each.gate, each.added)
            )
        return tuple(found)

    @property
    def spec(self) -> ModelSpec:
        """The model's dimensions."""
        spec: ModelSpec = self.model.spec
        return spec

    def added(self) -> list[linear.LinearCase]:
        """The products that are added to the residual stream, whose partial sums the next norm adds up."""
        return [product for product in self.products if product.added]

    def kept(self) -> list[linear.LinearCase]:
        """Those whose results are wanted as they are: other ranks wait for what is added, too."""
        return [product for product in self.products if self.ranks > 1 or not product.added]

    def mixers(self, kind: type[T]) -> list[T]:
        """The dimensions of the mixers of a kind, once each."""
        return list(dict.fromkeys(each.mixer for each in self.spec.layers if isinstance(each.mixer, kind)))

    def rotations(self) -> Mapping[Rotation, Tensor]:
        """The tables of each rotation."""
        return {
            each: rotary.table(POSITIONS)
            for each, rotary in make_rotaries(self.spec, self.inputs.device).items()
        }


@attrs.frozen
class Check:
    """How one kernel is tried: `run` launches it in every case and yields what came of it.

    A model that has nothing for a kernel to compute has no cases of it.

    Attributes:
        kernel: the function's name, as errors shall call it.
        when: whether serving launches it at all.
    """

    kernel: str
    run: Callable[[Bench], Iterator[Comparison]]
    when: Callable[[Bench], bool] = lambda _: True


def fastest(bench: Bench) -> bool:
    """True if rows decode, and results may depend on the batch."""
    return not bench.deterministic and bench.spec.encoder is None


def invariant(bench: Bench) -> bool:
    """True if they may not."""
    return bench.deterministic


def drafting(bench: Bench) -> bool:
    """True if rows have drafts."""
    return bench.max_width > 1


def widths(bench: Bench) -> list[int]:
    """Those of steps with drafts, which are powers of two, and of those beside chunks."""
    return [1 << power for power in range(bench.max_width.bit_length())]


def of_each(
    check: Callable[[Inputs, T], Iterator[Comparison]], of: Callable[[Bench], Iterable[T]]
) -> Callable[[Bench], Iterator[Comparison]]:
    """A check of each product, or of each kind of heads, of a model."""
    return lambda bench: chain.from_iterable(check(bench.inputs, each) for each in of(bench))


def with_each(
    check: Callable[..., Iterator[Comparison]], of: Callable[[Bench], Iterable[tuple[Any, ...]]]
) -> Callable[[Bench], Iterator[Comparison]]:
    """A check with each tuple of arguments."""
    return lambda bench: chain.from_iterable(check(bench.inputs, *each) for each in of(bench))
