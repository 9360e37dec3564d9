"""Products of many rows, where the arithmetic counts: the vendor's, those of one fixed order of summation, and those of 8-bit floats (ADR 0028)."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.forms import PLAIN, StoredWeight, form_of
from nanoserve.kernels.forms.launch import quantize_rows_into
from nanoserve.kernels.linear import launch
from nanoserve.kernels.linear.gated.launch import LEAST_ROWS, fits_gated, gated_linear
from nanoserve.kernels.pointwise.launch import gated_activation_into
from nanoserve.ports.layer_spec import Activation


class Ungated(NamedTuple):
    """Gate and up projections [T, 2 size] whose gated product, [T, size], has not been written yet."""

    projections: Tensor
    activation: Activation


class Way(enum.Enum):
    """How many rows multiply with a weight, as people are told; `{}` is the product of plain weights."""

    ROUNDED = "own kernel, rows rounded to 8-bit floats, too (W8A8)"
    PACKED = "own kernel, widened in registers"
    WIDENED = "widened, then {}"
    PLAIN = "{}"


class VendorProducts:
    """The vendor's; a weight that is kept as stored is widened first, but 8-bit floats multiply with 8-bit floats, and packed numbers are widened in registers."""

    invariant, plain = False, "cuBLAS"

    def way(self, matrix: Tensor | StoredWeight, x: Tensor) -> Way:
        """How rows like x [T, in_features] multiply with a weight."""
        if launch.takes_fp8(matrix, x):
            return Way.ROUNDED
        if launch.takes_packed(matrix, x) and not self.invariant:
            return Way.PACKED
        return Way.PLAIN if form_of(matrix) is PLAIN else Way.WIDENED

    def multiply(
        self,
        space: Workspace,
        x: Tensor,
        linear: Linear,
        out: Tensor,
        *,
        ungated: Ungated | None = None,
        add: bool = False,
        pdl: bool = False,
    ) -> None:
        """Write linear(x), x [T, in_features], to `out` [T, out_features], or add it to that.

        With `ungated`, x is their gated product; where 8-bit floats are multiplied, one kernel gates and rounds, and x is not written.
        """
        matrix, bias = linear.matrix, linear.bias
        more: dict[str, Any] = {"bias": bias, "residual": out if add else None}
        way = self.way(matrix, x)
        if way is Way.ROUNDED:
            assert isinstance(matrix, StoredWeight)
            numbers, scales = space.quantized
            numbers, scales = numbers[: x.numel()].view(x.shape), scales[: len(x)]
            read, activation = (x, None) if ungated is None else ungated
            quantize_rows_into(read, numbers, scales, activation=activation, pdl=pdl)
            launch.fp8_linear(numbers, scales, matrix, out, **more, invariant=self.invariant, pdl=pdl)
            return
        if ungated is not None:
            gated_activation_into(ungated.projections, x, activation=ungated.activation)
        if way is Way.PACKED:
            assert isinstance(matrix, StoredWeight)
            launch.packed_linear(x, matrix, out, workspace=space.linear, **more)
            return
        self.multiply_plain(x, launch.widened(matrix, space.widened), bias, out, add=add)

    def multiply_gated(
        self, space: Workspace, x: Tensor, linear: Linear, out: Tensor, gate: Activation
    ) -> bool:
        """Write the gated product of gate and up projections, [T, out_features / 2], where that is worth a kernel which does not write these; True if it is."""
        matrix = linear.matrix
        worth = len(x) >= LEAST_ROWS and linear.bias is None and not self.invariant
        if worth and self.way(matrix, x) in {Way.PLAIN, Way.WIDENED} and fits_gated(x, matrix):
            gated_linear(x, launch.widened(matrix, space.widened), out, gate=gate)
            return True
        return False

    def multiply_plain(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, add: bool
    ) -> None:
        """Write x weight^T + bias to `out`, or add it to that."""
        if add:
            torch.addmm(out, x, weight.t(), out=out)
            if bias is not None:
                out += bias
        elif bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias, x, weight.t(), out=out)


class InvariantProducts(VendorProducts):
    """Products in which each row has the same bits however many there are."""

    invariant, plain = True, "one order of summation"

    def multiply_plain(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, add: bool
    ) -> None:
        launch.invariant_linear(x, weight, out, bias=bias, residual=out if add else None)


class NoProducts(VendorProducts):
    """None of the vendor's, where the kernels around them are launched to be compiled: each shape that is new to its library takes milliseconds."""

    def multiply_plain(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, add: bool
    ) -> None:
        """Leave what stands in `out`."""


class ManyRows:
    """The products of many rows, as the next step is launched with them.

    Attributes:
        products: may be others for a while.
    """

    def __init__(self, *, invariant: bool) -> None:
        self.products = InvariantProducts() if invariant else VendorProducts()

    @property
    def is_invariant(self) -> bool:
        """True if steps are launched whose kernels compute a token's bits from the tokens before it alone."""
        return self.products.invariant

    @contextlib.contextmanager
    def made(self, products: VendorProducts) -> Iterator[None]:
        """Launch these, until this ends, unless all are invariant."""
        before, self.products = self.products, self.products if self.is_invariant else products
        try:
            yield
        finally:
            self.products = before
