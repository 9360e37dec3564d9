"""The policies of `LinearOps`: the fusion of products with norms, gates and additions, by the number of rows (`docs/performance.md` has the crossovers).

`Row`, of one row, has the norm before a product, its gate, and the addition to the residual stream in the product's own kernel, on the CUDA cores. `Skinny`,
of up to 64, multiplies on the tensor cores, and leaves partial sums that the next norm adds up, so that no kernel exists for the addition alone. `Wide`, of more rows and prompt chunks, has small
kernels between the products of `many_rows`, those of the vendor or of one fixed order of summation.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from nanoserve.adapters.pytorch.cuda.linear_ops import Gate, LinearOps, Policy
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows, Ungated, VendorProducts, Way
from nanoserve.adapters.pytorch.cuda.sums import Norm, Pending
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.product import Mixture
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.experts.launch import choose_experts, feed_lists, feed_rows, lists_round
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.forms import StoredWeight
from nanoserve.kernels.linear import launch

Weight = Tensor | StoredWeight | Mixture


class TellingPolicy(Policy, Protocol):
    """A policy that people are told of."""

    def told(self, weight: Weight, x: Tensor) -> str:
        """The product of rows like x with a weight, or with experts, in a few words."""


class Row:
    """One token: every product reads its weight once and does all around it in the same kernel, but for norms of what it adds."""

    norms = True

    def told(self, _: Weight, __: Tensor) -> str:
        return "own kernel, CUDA cores"

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, norm: Norm = None, *, gate: Gate = None
    ) -> None:
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        more: dict[str, Any] = {"bias": linear.bias, "norm_weight": weight, "eps": eps, "gate": gate}
        launch.row_linear(x, linear.matrix, out, **more, delta=ops.shrink(x, linear, norm), pdl=ops.pdl)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        out, residual = ops.sums.part(1), None
        if out is None and norm is None:
            out = residual = ops.stream
        elif out is None:
            out = ops.slices(1)[0]
        delta = ops.shrink(inner, linear)
        launch.row_linear(
            inner, linear.matrix, out, bias=linear.bias, residual=residual, delta=delta, pdl=ops.pdl
        )
        if residual is None:
            ops.pending = Pending(out[None], norm=norm)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        space = ops.space.mixing
        logits, chosen = space.views(1, mixture)
        ops.multiply(norm, mixture.router, logits[0])
        _choose(logits, mixture, chosen, pdl=ops.pdl)
        out = ops.stream
        if (part := ops.sums.part(1)) is not None:
            out, ops.pending = part, Pending(part[None])
        feed_rows(
            *(ops.stream, mixture.experts, chosen, out),
            workspace=space.feeds,
            norm_weight=norm.weight,
            eps=norm.eps,
            anew=part is not None,
            pdl=ops.pdl,
        )


class Skinny:
    """A few tokens: additions to the stream are left as partial sums."""

    norms = False

    def told(self, weight: Weight, x: Tensor) -> str:
        own = "own kernel, tensor cores"
        return _told_lists(weight, x, invariant=False) if isinstance(weight, Mixture) else own

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, _: Norm = None, *, gate: Gate = None
    ) -> None:
        how: dict[str, Any] = {"bias": linear.bias, "gate": gate, "delta": ops.shrink(x, linear)}
        how["pdl"] = ops.pdl
        if len(x) == 1:
            launch.row_linear(x, linear.matrix, out, **how)
        else:
            launch.skinny_linear(x, linear.matrix, out, workspace=ops.space.linear, **how)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        rows = len(inner)
        if (part := ops.sums.part(rows)) is not None:
            self.multiply(ops, inner, linear, part)
            ops.pending = Pending(part[None], norm=norm)
            return
        slices = ops.slices(launch.slice_count(rows, linear.matrix))
        launch.split_linear(inner, linear.matrix, slices, delta=ops.shrink(inner, linear), pdl=ops.pdl)
        ops.leave(slices, linear.bias, norm)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        rows, router, space = len(ops.stream), mixture.router, ops.space.mixing
        normed = ops.complete(norm)
        logits, chosen = space.views(rows, mixture, launch.slice_count(rows, router.matrix))
        launch.split_linear(normed, router.matrix, logits, pdl=ops.pdl)
        _choose(logits, mixture, chosen, router.bias, pdl=ops.pdl)
        slices = ops.slices(mixture.routing.slots)
        feed_lists(normed, mixture.experts, chosen, slices, workspace=space.feeds, pdl=ops.pdl)
        ops.leave(slices, chosen=chosen.experts)


class Wide:
    """Many tokens: the arithmetic counts, and the product's own kernel adds to the stream, or after experts the next norm.

    With `InvariantProducts` a token alone and in any batch has the same bits.
    """

    norms = False

    def __init__(self, products: VendorProducts) -> None:
        self.products = products

    def told(self, weight: Weight, x: Tensor) -> str:
        if isinstance(weight, Mixture):
            return _told_lists(weight, x, invariant=self.products.invariant)
        return self.products.way(weight, x).value.format(self.products.plain)

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, _: Norm = None, *, gate: Gate = None
    ) -> None:
        adapted = ops.low_rank is not None
        if gate and not adapted and self.products.multiply_gated(ops.space, x, linear, out, gate):
            return
        entered = out if gate is None else ops.entered[linear.out_features]
        self.products.multiply(ops.space, x, linear, entered, pdl=ops.pdl)
        is_gated = ops.adapt(x, linear, entered, (gate, out) if gate else None)
        ops.ungated = None if gate is None or is_gated else Ungated(entered, gate)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        part, ungated, ops.ungated = ops.sums.part(len(inner)), ops.ungated, None
        if part is None and norm is None:
            self.products.multiply(
                ops.space, inner, linear, ops.stream, ungated=ungated, add=True, pdl=ops.pdl
            )
            ops.adapt(inner, linear, ops.stream)
            return
        out = ops.normed if part is None else part
        self.products.multiply(ops.space, inner, linear, out, ungated=ungated, pdl=ops.pdl)
        ops.adapt(inner, linear, out)
        ops.pending = Pending(out[None], norm=norm)
        if part is None:  # before the next norm is written where it lies
            ops.complete(None)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        (rows, hidden), router, space = ops.stream.shape, mixture.router, ops.space.mixing
        normed, slots = ops.complete(norm), mixture.routing.slots
        logits, chosen = space.views(rows, mixture)
        launch.invariant_linear(normed, router.weight, logits[0], bias=router.bias)
        _choose(logits, mixture, chosen, pdl=ops.pdl)
        slices = space.partials[: slots * rows * hidden].view(slots, rows, hidden)
        feed_lists(
            *(normed, mixture.experts, chosen, slices),
            workspace=space.feeds,
            invariant=self.products.invariant,
            pdl=ops.pdl,
        )
        ops.leave(slices, chosen=chosen.experts)


def _told_lists(mixture: Mixture, x: Tensor, *, invariant: bool) -> str:
    """The product of `feed_lists` for rows like x."""
    slots = mixture.routing.slots
    rounds = lists_round(mixture.experts, x, slots, invariant=invariant)
    return ("own kernel, expert by expert", Way.ROUNDED.value)[rounds]


def policy_for(rows: int, many: ManyRows, most_skinny: int) -> TellingPolicy:
    """The policy of a step that decodes so many rows; `many` are computed as those beyond `most_skinny`, and as all are where results may not depend on their number."""
    if many.is_invariant or rows > most_skinny:
        return Wide(many.products)
    return Row() if rows == 1 else Skinny()


def _choose(logits: Tensor, mixture: Mixture, out: Chosen, bias: Tensor | None = None, *, pdl: bool) -> None:
    more = {"bias": bias, "correction": mixture.correction, "counts": mixture.counts}
    choose_experts(logits, mixture.routing, out, **more, pdl=pdl)
