"""Products with a given weight, in every form in which a decoder layer computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.forms import PLAIN, StoredWeight, form_of
from nanoserve.kernels.forms.fp8 import LARGEST
from nanoserve.kernels.gates import Activation, gated
from nanoserve.kernels.linear import launch, reference
from nanoserve.kernels.linear.gated.launch import fits_gated, gated_linear
from nanoserve.kernels.linear.low_rank.cases import Runs, random_delta
from nanoserve.kernels.linear.low_rank.launch import Delta, shrink
from nanoserve.kernels.testing import Comparison, Inputs, expect

SKINNY_ROWS: Final = (5, 16, 20, 33)
"""One number of rows for each tile that batches of up to 64 rows run with."""
MOST_COMPARED: Final = 4096
"""Rows of an invariant product whose bits are compared with those of few."""
SLICE: Final = 1 << 24
"""Elements of a weight that are in float32 at a time."""


class LinearCase(NamedTuple):
    """A weight [N, K], and the operations around its product.

    Attributes:
        norm_weight: [K], of the norm before it; None if its input is no residual stream.
        gate: an activation, if it is a gate and an up projection, whose product is wanted.
        added: whether what comes out is added to the residual stream.
    """

    name: str
    weight: Tensor | StoredWeight
    bias: Tensor | None = None
    norm_weight: Tensor | None = None
    eps: float = 0.0
    gate: Activation | None = None
    added: bool = False

    @property
    def width(self) -> int:
        """Elements of one row of the result."""
        return len(self.weight) // (2 if self.gate else 1)

    def case(self, rows: int) -> str:
        """Its name and shapes."""
        n, k = self.weight.shape
        return f"{self.name}, {rows} x {k} times {k} x {n}"

    def formula(self, x: Tensor, *, normed: bool = False, bias: bool = True, gate: bool = True) -> Tensor:
        """The reference, computed a slice of the weight at a time: no float32 copy of all of it is made."""
        step = max(1, SLICE // self.weight.shape[1])
        pieces = [
            reference.linear(
                x,
                self.weight[start : start + step].float(),
                bias=None if self.bias is None or not bias else self.bias[start : start + step],
                norm_weight=self.norm_weight if normed else None,
                eps=self.eps,
            )
            for start in range(0, len(self.weight), step)
        ]
        product = torch.cat(pieces, dim=1)
        return gated(product, self.gate) if gate and self.gate else product


def check_row_linear(inputs: Inputs, product: LinearCase) -> Iterator[Comparison]:
    """One row, with all that is fused into it; the row stays as it is."""
    x = inputs.normal(1, product.weight.shape[1])
    wanted, residual = product.formula(x, normed=True), None
    if product.added:
        residual = inputs.normal_like(wanted)
        wanted = wanted + residual.float()
    return inputs.compare(
        launch.row_linear,
        product.case(1),
        chained=True,
        x=x,
        weight=product.weight,
        out=expect(wanted),
        bias=product.bias,
        norm_weight=product.norm_weight,
        eps=product.eps,
        residual=residual,
        gate=product.gate,
    )


def check_skinny_linear(
    inputs: Inputs, product: LinearCase, batches: Sequence[int] = ()
) -> Iterator[Comparison]:
    """Some numbers of rows, twice each: leftovers in the scratch memory must not matter, and the counters must not move."""
    batches = batches or SKINNY_ROWS
    k = product.weight.shape[1]
    space = _space(inputs, product, batches)
    space.partials.fill_(torch.nan)
    parts = {"weight": product.weight, "bias": product.bias, "gate": product.gate, "workspace": space}
    for rows in batches:
        x = inputs.normal(rows, k)
        out = expect(product.formula(x))
        for _ in range(2):
            yield from inputs.compare(
                launch.skinny_linear, product.case(rows), chained=True, x=x, out=out, **parts
            )
    counters = space.counters
    yield Comparison(f"counters behind {product.name}", counters, torch.zeros_like(counters), exact=True)


def check_split_linear(
    inputs: Inputs, product: LinearCase, batches: Sequence[int] = ()
) -> Iterator[Comparison]:
    """Partial sums of each of some numbers of rows, which the next norm adds up."""
    n, k = product.weight.shape
    for rows in batches or SKINNY_ROWS:
        x = inputs.normal(rows, k)
        partials = inputs.poisoned(launch.slice_count(rows, product.weight), rows, n, dtype=torch.float32)
        inputs.settle()
        launch.split_linear(x, product.weight, partials, pdl=inputs.pdl)
        yield Comparison(product.case(rows), partials.sum(0), product.formula(x, bias=False))


def check_adapted(
    inputs: Inputs,
    product: LinearCase,
    runs: Runs,
    batches: Sequence[int] = (1, *SKINNY_ROWS),
    *,
    ranks: Sequence[int] = (16, 64, 32),
) -> Iterator[Comparison]:
    """Products of tokens that have adapters of these ranks, or none; `runs` are of columns that read one part (first, end, part)."""
    k = product.weight.shape[1]
    space = _space(inputs, product, batches)
    for rows in batches:
        x, normed = inputs.normal(rows, k), rows == 1
        read = x.float()
        if normed and product.norm_weight is not None:
            mean = (read * read).mean(dim=1, keepdim=True)
            read = read / torch.sqrt(mean + product.eps) * product.norm_weight.float()
        slots = [(token + 1) % (len(ranks) + 1) for token in range(rows)]
        delta, added = random_delta(inputs, runs, read, slots, ranks=ranks)
        wanted = product.formula(x, normed=normed, gate=False) + added
        out = expect(gated(wanted, product.gate) if product.gate else wanted)
        parts = {"product": product, "delta": delta, "space": space}
        yield from inputs.compare(multiply_adapted, product.case(rows), chained=True, x=x, out=out, **parts)


def _space(inputs: Inputs, product: LinearCase, batches: Sequence[int]) -> launch.LinearWorkspace:
    made: dict[str, Any] = {"max_m": max(batches), "dtype": inputs.dtype, "device": inputs.device}
    return launch.LinearWorkspace.create([product.weight], **made)


def multiply_adapted(
    x: Tensor,
    out: Tensor,
    product: LinearCase,
    delta: Delta,
    space: launch.LinearWorkspace,
    *,
    pdl: bool = False,
) -> None:
    """A product as decoding rows compute it, with adapters."""
    weight, bias = product.weight, product.bias
    if len(x) == 1:
        shrink(x, delta, norm_weight=product.norm_weight, pdl=pdl)
        norm: dict[str, Any] = {"norm_weight": product.norm_weight, "eps": product.eps}
        launch.row_linear(x, weight, out, bias=bias, **norm, gate=product.gate, delta=delta, pdl=pdl)
        return
    shrink(x, delta, pdl=pdl)
    if product.added:
        slices = x.new_full((launch.slice_count(len(x), weight), *out.shape), torch.nan, dtype=torch.float32)
        launch.split_linear(x, weight, slices, delta=delta, pdl=pdl)
        out.copy_(slices.sum(0) + (0.0 if bias is None else bias.float()))
        return
    launch.skinny_linear(x, weight, out, workspace=space, bias=bias, gate=product.gate, delta=delta, pdl=pdl)


def _results(inputs: Inputs, product: LinearCase, wanted: Tensor) -> dict[str, Any]:
    """Arguments of a product of many rows: what it leaves, in the place of what it is added to if it is."""
    before = inputs.normal_like(wanted) if product.added else None
    out = expect(wanted if before is None else wanted + before.float(), before)
    return {"bias": product.bias, "out": out, "residual": out if product.added else None}


def check_fp8_linear(
    inputs: Inputs, product: LinearCase, batches: Sequence[int] = (), *, invariant: bool = False
) -> Iterator[Comparison]:
    """Rows of 8-bit floats, in every tile; what is added to the residual stream is added in place. Nothing where the weight is no such one."""
    weight = product.weight
    for rows in batches or launch.stored_ways(weight, inputs.normal(1)):
        x = inputs.normal(rows, weight.shape[1])
        if not launch.takes_fp8(weight, x):
            return
        scales = x.float().abs().amax(1) / LARGEST
        numbers = (x.float() / scales[:, None]).to(weight.form.dtype)
        parts = _results(inputs, product, product.formula(numbers.float() * scales[:, None], gate=False))
        yield from inputs.compare(
            *(launch.fp8_linear, product.case(rows)),
            x=numbers,
            x_scales=scales,
            weight=weight,
            invariant=invariant,
            **parts,
        )


def check_packed_linear(
    inputs: Inputs, product: LinearCase, batches: Sequence[int] = ()
) -> Iterator[Comparison]:
    """Many rows, in every tile, with packed numbers; what is added to the residual stream is added in place. Nothing where the weight has none."""
    weight = product.weight
    for rows in batches or launch.stored_ways(weight, inputs.normal(1)):
        x = inputs.normal(rows, weight.shape[1])
        if not launch.takes_packed(weight, x):
            continue
        parts = _results(inputs, product, product.formula(x, gate=False))
        parts |= {"weight": weight, "workspace": _space(inputs, product, [1])}
        yield from inputs.compare(launch.packed_linear, product.case(rows), x=x, **parts)


def check_gated_linear(inputs: Inputs, product: LinearCase, rows: int = 300) -> Iterator[Comparison]:
    """Many rows of a gate and an up projection. Nothing where the product is another one, or has no kernel."""
    x, weight = inputs.normal(rows, product.weight.shape[1]), product.weight
    if product.gate and product.bias is None and isinstance(weight, Tensor) and fits_gated(x, weight):
        parts = {"x": x, "weight": weight, "out": expect(product.formula(x)), "gate": product.gate}
        yield from inputs.compare(gated_linear, product.case(rows), **parts)


def check_invariant_linear(inputs: Inputs, product: LinearCase, rows: int = 7) -> Iterator[Comparison]:
    """In the form that does not depend on the batch; what is added to the residual stream is added in place."""
    x, weight = inputs.normal(rows, product.weight.shape[1]), product.weight
    wanted = product.formula(x, gate=False)
    parts, before = _results(inputs, product, wanted), inputs.normal_like(wanted)
    if form_of(weight) is not PLAIN:
        wide = launch.widened(weight, inputs.poisoned(weight.shape.numel()))
        yield Comparison(f"widened {product.name}", wide, weight.float().to(inputs.dtype), exact=True)
        weight = wide
    assert isinstance(weight, Tensor)
    yield from inputs.compare(launch.invariant_linear, product.case(rows), x=x, weight=weight, **parts)
    alone, ways = inputs.poisoned(rows, len(weight)), launch.invariant_ways(weight, x, MOST_COMPARED)
    launch.invariant_linear(x, weight, alone, bias=product.bias, residual=before)
    for count in ways if len(ways) > 1 else ():
        repeats = -(-count // rows)
        many, bits, added = (each.repeat(repeats, 1)[:count].contiguous() for each in (x, alone, before))
        made = inputs.poisoned(count, len(weight))
        launch.invariant_linear(many, weight, made, bias=product.bias, residual=added)
        yield Comparison(f"invariant_linear {product.name}, bits of {count} rows", made, bits, exact=True)
