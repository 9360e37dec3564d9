"""Checks of the products with layer 0's own weights and the head's, which select the tiles that serving runs with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench
from nanoserve.adapters.pytorch.cuda.self_test.comparison import Comparison
from nanoserve.adapters.pytorch.cuda.workspace import MOST_SKINNY_ROWS
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.part import Product
from nanoserve.kernels.linear.launch import (
    Workspace,
    invariant_linear,
    row_linear,
    skinny_linear,
    split_linear,
)
from nanoserve.kernels.linear.reference import linear
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.silu_mul.reference import silu_mul

SKINNY_ROWS = (5, 20, 33)
"""One number of rows for each tile that batches of up to 64 rows run with."""
INVARIANT_ROWS = 7
SLICE = 1 << 24
"""Elements of a weight that are in float32 at a time."""


def _case(product: Product, rows: int) -> str:
    """Its name and shapes."""
    n, k = product.linear.weight.shape
    return f"{product.name}, {rows} x {k} times {k} x {n}"


def check_row_linear(bench: Bench) -> Iterator[Comparison]:
    """Every product of one row, with all that is fused into it."""
    for product in bench.model.products():
        weight, bias, norm = product.linear.weight, product.linear.bias, product.norm
        x, out = bench.normal(1, weight.shape[1]), bench.poisoned(1, product.width)
        wanted = _formula(x, weight, bias=bias, norm=norm, gate=product.gated)
        residual = None
        if product.norm is None:
            residual = bench.normal_like(wanted)
            wanted = wanted + residual.float()
        bench.settle()
        row_linear(
            x,
            weight,
            out,
            bias=bias,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            residual=residual,
            gate=product.gated,
            pdl=bench.pdl,
        )
        yield Comparison(case=_case(product, 1), got=out, wanted=wanted)


def check_skinny_linear(bench: Bench) -> Iterator[Comparison]:
    """The products whose results are wanted as they are; the scratch memory has to be left as it was found."""
    for product in bench.model.products():
        if product.norm is None:
            continue
        weight, bias = product.linear.weight, product.linear.bias
        n, k = weight.shape
        workspace = Workspace.create([(n, k)], max_m=MOST_SKINNY_ROWS, dtype=bench.dtype, device=bench.device)
        workspace.partials.fill_(torch.nan)
        for rows in SKINNY_ROWS:
            x, out = bench.normal(rows, k), bench.poisoned(rows, product.width)
            bench.settle()
            skinny_linear(x, weight, out, bias=bias, gate=product.gated, workspace=workspace, pdl=bench.pdl)
            wanted = _formula(x, weight, bias=bias, gate=product.gated)
            yield Comparison(case=_case(product, rows), got=out, wanted=wanted)
        counters = workspace.counters
        case = f"counters behind {product.name}"
        yield Comparison(case=case, got=counters, wanted=torch.zeros_like(counters), exact=True)


def check_split_linear(bench: Bench) -> Iterator[Comparison]:
    """The products whose partial sums the next norm adds up."""
    for product in bench.model.products():
        if product.norm is not None:
            continue
        weight = product.linear.weight
        n, k = weight.shape
        for rows in SKINNY_ROWS:
            x = bench.normal(rows, k)
            partials = bench.poisoned(split_count(rows, n, k), rows, n, dtype=torch.float32)
            bench.settle()
            split_linear(x, weight, partials, pdl=bench.pdl)
            yield Comparison(case=_case(product, rows), got=partials.sum(0), wanted=_formula(x, weight))


def check_invariant_linear(bench: Bench) -> Iterator[Comparison]:
    """Every product in the form that does not depend on the batch."""
    for product in bench.model.products():
        weight, bias = product.linear.weight, product.linear.bias
        x = bench.normal(INVARIANT_ROWS, weight.shape[1])
        out = bench.poisoned(INVARIANT_ROWS, len(weight))
        wanted = _formula(x, weight, bias=bias)
        residual = None
        if product.norm is None:
            out = residual = bench.normal_like(wanted)
            wanted = wanted + residual.float()
        invariant_linear(x, weight, out, bias=bias, residual=residual)
        yield Comparison(case=_case(product, INVARIANT_ROWS), got=out, wanted=wanted)


def _formula(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, norm: RMSNorm | None = None, gate: bool = False
) -> Tensor:
    """The reference, computed a slice of the weight at a time: no float32 copy of all of it is made."""
    step = max(1, SLICE // weight.shape[1])
    pieces = [
        linear(
            x,
            weight[start : start + step],
            bias=None if bias is None else bias[start : start + step],
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
        )
        for start in range(0, len(weight), step)
    ]
    product = torch.cat(pieces, dim=1)
    return silu_mul(product) if gate else product
