"""Products of a step with weights on a GPU: `LinearOps` has the residual stream, and four collaborators.

The *policy* says what is fused around a product; the number of rows decides (`docs/performance.md` has the crossovers):

- `Row`, one row: products on the CUDA cores with norm, gate and residual addition fused in.
- `Skinny`, up to 64 rows: tensor-core products; what is added to the residual stream stays behind as partial sums, which the
  next norm adds up, so that no kernel exists for the addition alone.
- `Wide`, more rows and prompt chunks: the products of `many_rows` with small kernels between them.
- `Invariant`: the same with products of one fixed order of summation, so that results do not depend on the batch.

*Adapters* (`low_rank.StepLoras`), in steps whose rows have some, add to each product what they make of its input: one kernel begins that, and the
product's own ends it, or another one behind the products of `many_rows`. The *sums* say who else adds to the stream: nobody (`sums.Sums`), or other ranks (`ranks.exchange.Exchange`). The *form* of a weight is its
own (`Linear.matrix`), and kernels ask it what to load. Nothing here allocates or waits, so that a step can be captured in a graph.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.low_rank import StepLoras
from nanoserve.adapters.pytorch.cuda.many_rows import InvariantProducts, Ungated, VendorProducts
from nanoserve.adapters.pytorch.cuda.sums import Norm, Pending, Sums
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.layers.mixture import Mixture
from nanoserve.adapters.pytorch.layers.norm import LayerNorm, RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.experts.launch import choose_experts, feed_lists, feed_rows
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.linear.launch import (
    invariant_linear,
    row_linear,
    skinny_linear,
    slice_count,
    split_linear,
)
from nanoserve.kernels.linear.low_rank.launch import Delta, expand_into
from nanoserve.kernels.pointwise.launch import (
    add_rms_norm_into,
    gated_activation_into,
    layer_norm_into,
)
from nanoserve.ports.layer_spec import Activation

Gate = Activation | None
AnyNorm = Norm | LayerNorm
LEAST_SPLIT_ROWS: Final = 17
"""From so many on a product by itself does not cut K into slices, and would leave most of the device idle."""


class LinearOps:
    """Fulfils `layers.part.LinearOps` over the residual stream `stream`, [T, hidden], of one step.

    Between a `project_out` and the next norm, the `pending` parts are not in the stream yet. Gated products of many tokens are
    written by the `project_out` that reads them.
    """

    def __init__(
        self,
        policy: Policy,
        sums: Sums,
        stream: Tensor,
        space: Workspace,
        *,
        pdl: bool,
        low_rank: StepLoras | None = None,
    ) -> None:
        self.policy, self.sums, self.space, self.pdl = policy, sums, space, pdl
        self.low_rank = low_rank
        self.pending: Pending | None = None
        self.ungated: Ungated | None = None
        self._chosen: Tensor | None = None
        self._compute_for(stream)

    def _compute_for(self, stream: Tensor) -> None:
        rows, space = len(stream), self.space
        self.stream, self.normed = stream, space.normed[:rows]
        self.entered, self._inner = Views(space.entered, rows), Views(space.inner, rows)
        self._following = Views(space.following, rows)

    def narrow(self, chosen: Tensor) -> None:
        """From the next `project_out` on, compute for the tokens `chosen` alone: int32 indices [S] into the stream, S may be 0."""
        self._chosen = chosen

    def project_in(self, norm: AnyNorm, linear: Linear, /) -> Tensor:
        return self.multiply(norm, linear, self.entered[linear.out_features])

    def project_in_activated(self, norm: AnyNorm, linear: Linear, activation: Activation, /) -> Tensor:
        """See `layers.part.LinearOps`; the activation is torch's own, in place."""
        out = self.multiply(norm, linear, self._inner[linear.out_features])
        if activation == "silu":
            torch.ops.aten.silu_(out)
        else:
            torch.ops.aten.gelu_(out, approximate="tanh" if activation == "gelu_tanh" else "none")
        return out

    def project_in_gated(self, norm: AnyNorm, gate_up: Linear, activation: Activation, /) -> Tensor:
        return self.multiply(norm, gate_up, self._inner[gate_up.out_features // 2], activation)

    def project(self, columns: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        out = self._following[linear.out_features]
        if len(out) and self.policy.norms:
            self.policy.multiply(self, columns, linear, out, norm)
        elif len(out):
            x = self._normed_columns(columns, norm)
            self.policy.multiply(self, x, linear, out)
        return out

    def project_out(self, inner: Tensor, linear: Linear, norm: AnyNorm = None, /) -> None:
        assert not isinstance(norm, LayerNorm), "families with layer norms add what is not normed"
        # Not in `narrow`: the mixer between still needs every token's keys and values.
        if self._chosen is not None:
            chosen, self._chosen = self._chosen, None
            inner = chosen_rows(inner, chosen, Views(self.space.chosen_inner, len(chosen))[inner.shape[1]])
            self._compute_for(chosen_rows(self.stream, chosen, self.space.chosen[: len(chosen)]))
        if len(inner):
            self.policy.add(self, inner, linear, norm)

    def norm_stream(self, norm: AnyNorm, /) -> None:
        if isinstance(norm, LayerNorm):
            stream = self.complete(None)
            layer_norm_into(stream, norm.weight, norm.bias, stream, eps=norm.eps)
        else:
            assert norm is None, "families that norm the stream in place have layer norms"

    def experts(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        if len(self.stream):
            self.policy.add_experts(self, norm, mixture)

    def logits(self, norm: AnyNorm, head: Linear) -> Tensor:
        """head(norm(stream)), [B, vocab], valid until the next step."""
        logits = self.space.logits[: len(self.stream)]
        self.multiply(norm, head, self.sums.columns(logits, head.out_features))
        self.sums.gather(logits, pdl=self.pdl)
        return logits

    def multiply(self, norm: AnyNorm, linear: Linear, out: Tensor, gate: Gate = None) -> Tensor:
        """gate(linear(norm(stream))) in `out`."""
        x = self.stream
        if self.pending is not None or not self.policy.norms or isinstance(norm, LayerNorm):
            x, norm = self.complete(norm), None
        if len(out):
            self.policy.multiply(self, x, linear, out, norm, gate=gate)
        return out

    def shrink(self, x: Tensor, linear: Linear, norm: Norm = None) -> Delta | None:
        """Begin what adapters add to a product of x, or of norm(x) where that is the product's own, of one token."""
        if self.low_rank is None:
            return None
        return self.low_rank.shrink(x, linear, None if norm is None else norm.weight)

    def adapt(self, x: Tensor, linear: Linear, product: Tensor) -> None:
        """Add to a product what adapters make of x."""
        if (delta := self.shrink(x, linear)) is not None:
            expand_into(delta, product, pdl=self.pdl)

    def leave(
        self, slices: Tensor, bias: Tensor | None = None, norm: Norm = None, chosen: Tensor | None = None
    ) -> None:
        """Let the next norm add the sum of slices [S, rows, hidden] to the stream; `chosen` [rows, S] is negative for those of experts that are elsewhere."""
        self.pending = Pending(*self.sums.join(slices, bias, chosen, pdl=self.pdl), norm)

    def complete(self, norm: AnyNorm) -> Tensor:
        """norm(stream), [T, hidden], valid until the next call; without a norm the stream itself. One kernel, or none."""
        if isinstance(norm, LayerNorm):
            stream = self.complete(None)
            layer_norm_into(stream, norm.weight, norm.bias, self.normed, eps=norm.eps)
            return self.normed
        stream, pending, self.pending = self.stream, self.pending, None
        if pending is not None:
            self.sums.complete(stream, pending, norm, self.normed, pdl=self.pdl)
        elif norm is not None and len(stream):
            add_rms_norm_into(stream, norm.weight, self.normed, eps=norm.eps, pdl=self.pdl)
        return stream if norm is None else self.normed

    def _normed_columns(self, columns: Tensor, norm: RMSNorm) -> Tensor:
        """The norm of columns of a wider tensor, contiguous."""
        plain, normed = (each[: columns.numel()].view(columns.shape) for each in self.space.followed)
        plain.copy_(columns)
        add_rms_norm_into(plain, norm.weight, normed, eps=norm.eps, pdl=self.pdl)
        return normed

    def slices(self, count: int) -> Tensor:
        """Float32 [count, rows, hidden], for what few tokens' products leave."""
        rows, hidden = self.stream.shape
        return self.space.partial_sums[: count * rows * hidden].view(count, rows, hidden)


class Row:
    """One token: every product reads its weight once and does all around it in the same kernel, but for norms of what it adds."""

    norms = True

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, norm: Norm = None, *, gate: Gate = None
    ) -> None:
        """gate(linear(norm(x))) in `out`; other policies have no norm here."""
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        more: dict[str, Any] = {"bias": linear.bias, "norm_weight": weight, "eps": eps, "gate": gate}
        row_linear(x, linear.matrix, out, **more, delta=ops.shrink(x, linear, norm), pdl=ops.pdl)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        """Add norm(linear(inner)) to the stream, now or with the next norm."""
        out, residual = ops.sums.part(1), None
        if out is None and norm is None:
            out = residual = ops.stream
        elif out is None:
            out = ops.slices(1)[0]
        delta = ops.shrink(inner, linear)
        row_linear(inner, linear.matrix, out, bias=linear.bias, residual=residual, delta=delta, pdl=ops.pdl)
        if residual is None:
            ops.pending = Pending(out[None], norm=norm)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        """Add the outputs of each token's experts for norm(stream)."""
        space = ops.space.mixing
        logits, chosen = space.views(1, mixture)
        ops.multiply(norm, mixture.router, logits[0])
        _choose(logits, mixture, chosen, pdl=ops.pdl)
        out = ops.stream
        if (part := ops.sums.part(1)) is not None:
            out = part.zero_()
            ops.pending = Pending(part[None])
        feed_rows(
            *(ops.stream, mixture.experts, chosen, out),
            workspace=space.feeds,
            norm_weight=norm.weight,
            eps=norm.eps,
            pdl=ops.pdl,
        )


class Skinny:
    """A few tokens: additions to the stream are left as partial sums."""

    norms = False

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, _: Norm = None, *, gate: Gate = None
    ) -> None:
        how: dict[str, Any] = {"bias": linear.bias, "gate": gate, "delta": ops.shrink(x, linear)}
        how["pdl"] = ops.pdl
        if len(x) == 1:
            row_linear(x, linear.matrix, out, **how)
        else:
            skinny_linear(x, linear.matrix, out, workspace=ops.space.linear, **how)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        rows = len(inner)
        if rows < LEAST_SPLIT_ROWS and (part := ops.sums.part(rows)) is not None:
            self.multiply(ops, inner, linear, part)
            ops.pending = Pending(part[None], norm=norm)
            return
        slices = ops.slices(slice_count(rows, linear.matrix))
        split_linear(inner, linear.matrix, slices, delta=ops.shrink(inner, linear), pdl=ops.pdl)
        ops.leave(slices, linear.bias, norm)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        rows, router, space = len(ops.stream), mixture.router, ops.space.mixing
        normed = ops.complete(norm)
        logits, chosen = space.views(rows, mixture, slice_count(rows, router.matrix))
        split_linear(normed, router.matrix, logits, pdl=ops.pdl)
        _choose(logits, mixture, chosen, router.bias, pdl=ops.pdl)
        slices = ops.slices(mixture.routing.slots)
        feed_lists(normed, mixture.experts, chosen, slices, workspace=space.feeds, pdl=ops.pdl)
        ops.leave(slices, chosen=chosen.experts)


class Wide:
    """Many tokens: the arithmetic counts, and the product's own kernel adds to the stream, or after experts the next norm."""

    norms = False
    invariant = False
    products = VendorProducts()

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, _: Norm = None, *, gate: Gate = None
    ) -> None:
        entered = out if gate is None else ops.entered[linear.out_features]
        self.products.multiply(ops.space, x, linear, entered)
        ops.adapt(x, linear, entered)
        ops.ungated = None if gate is None else Ungated(entered, gate)

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        part, ungated, ops.ungated = ops.sums.part(len(inner)), ops.ungated, None
        if ungated is not None and ops.low_rank is not None:  # which reads what is gated
            gated_activation_into(ungated.projections, inner, activation=ungated.activation, pdl=ops.pdl)
            ungated = None
        if part is None and norm is None:
            self.products.multiply(ops.space, inner, linear, ops.stream, ungated=ungated, add=True)
            ops.adapt(inner, linear, ops.stream)
            return
        out = ops.normed if part is None else part
        self.products.multiply(ops.space, inner, linear, out, ungated=ungated)
        ops.adapt(inner, linear, out)
        ops.pending = Pending(out[None], norm=norm)
        if part is None:  # before the next norm is written where it lies
            ops.complete(None)

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        (rows, hidden), router, space = ops.stream.shape, mixture.router, ops.space.mixing
        normed, slots = ops.complete(norm), mixture.routing.slots
        logits, chosen = space.views(rows, mixture)
        invariant_linear(normed, router.weight, logits[0], bias=router.bias)
        _choose(logits, mixture, chosen, pdl=ops.pdl)
        slices = space.partials[: slots * rows * hidden].view(slots, rows, hidden)
        feed_lists(
            *(normed, mixture.experts, chosen, slices),
            workspace=space.feeds,
            invariant=self.invariant,
            pdl=ops.pdl,
        )
        ops.leave(slices, chosen=chosen.experts)


class Invariant(Wide):
    """Many tokens, with the same bits for a token alone and in any batch."""

    invariant = True
    products = InvariantProducts()


Policy = Row | Skinny | Wide


def _choose(logits: Tensor, mixture: Mixture, out: Chosen, bias: Tensor | None = None, *, pdl: bool) -> None:
    more = {"bias": bias, "correction": mixture.correction, "counts": mixture.counts}
    choose_experts(logits, mixture.routing, out, **more, pdl=pdl)


def chosen_rows(rows: Tensor, indices: Tensor, out: Tensor) -> Tensor:
    """Some rows of a tensor, in `out`."""
    return torch.index_select(rows, 0, indices, out=out)
