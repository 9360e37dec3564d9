"""How a step's products are computed on a GPU; the number of rows decides (`docs/performance.md` has the crossovers).

- `RowProducts`, one row: products on the CUDA cores with norm, gate and residual addition fused in.
- `SkinnyProducts`, up to 64 rows: tensor-core products; what is added to the residual stream stays behind as partial sums, which the
  next norm adds up, so that no kernel exists for the addition alone.
- `WideProducts`, more rows and prompt chunks: the vendor's products with small kernels between them.
- `InvariantProducts`: the same with products of one fixed order of summation, so that results do not depend on the batch.

All fulfil `layers.part.Products`. They allocate nothing and wait for nothing, so that a step can be captured in a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.layers.mixture import Mixture
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.experts.launch import choose_experts, feed_lists, feed_rows
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.gated_activation.launch import gated_activation_into
from nanoserve.kernels.linear.launch import (
    invariant_linear,
    row_linear,
    skinny_linear,
    split_linear,
    widen_into,
)
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.rms_norm.launch import add_partials_into, add_rms_norm_into
from nanoserve.kernels.stored import StoredWeight
from nanoserve.ports.layer_spec import Activation


class FusedProducts:
    """What products for few tokens share: the norm and the gate are theirs, each in its own way (`_multiply`).

    Between a `leave` and the next `enter` the stream may lack what a product has left as partial sums.
    """

    _partials: Tensor | None = None
    _bias: Tensor | None = None
    _post_norm: RMSNorm | None = None

    def __init__(self, stream: Tensor, space: Workspace, *, pdl: bool) -> None:
        rows = len(stream)
        self._stream, self._space, self._pdl = stream, space, pdl
        self._entered, self._inner = Views(space.entered, rows), Views(space.inner, rows)
        self._following = Views(space.following, rows)

    def enter(self, norm: RMSNorm | None, linear: Linear, /) -> Tensor:
        """See `Products`."""
        return self._multiply(norm, linear, self._entered[linear.out_features])

    def enter_gated(self, norm: RMSNorm | None, gate_up: Linear, activation: Activation, /) -> Tensor:
        """See `Products`."""
        return self._multiply(norm, gate_up, self._inner[gate_up.out_features // 2], activation)

    def logits(self, norm: RMSNorm, head: Linear) -> Tensor:
        """head(norm(stream)), [B, vocab], valid until the next step."""
        return self._multiply(norm, head, self._space.logits[: len(self._stream)])

    def _multiply(
        self, norm: RMSNorm | None, linear: Linear, out: Tensor, gate: Activation | None = None
    ) -> Tensor:
        raise NotImplementedError

    def _complete(self, norm: RMSNorm | None) -> Tensor:
        """The norm of the stream, or the stream itself, with what the last product has left; one kernel, or none."""
        stream, partials, bias, pdl = self._stream, self._partials, self._bias, self._pdl
        branch_norm = None if self._post_norm is None else self._post_norm.weight
        self._partials = self._bias = None
        if norm is not None:
            normed, eps = self._space.normed[: len(stream)], norm.eps
            pending = {"partials": partials, "bias": bias, "branch_norm": branch_norm}
            add_rms_norm_into(stream, norm.weight, normed, **pending, eps=eps, pdl=pdl)
            self._post_norm = None
            return normed
        if partials is not None:
            eps = 0.0 if self._post_norm is None else self._post_norm.eps
            add_partials_into(stream, partials, bias=bias, branch_norm=branch_norm, eps=eps, pdl=pdl)
            self._post_norm = None
        return stream


class RowProducts(FusedProducts):
    """One token: every product reads its weight once and does all around it in the same kernel, but for norms of what it adds."""

    def leave(self, inner: Tensor, linear: Linear, norm: RMSNorm | None = None, /) -> None:
        """See `Products`."""
        stream, pdl = self._stream, self._pdl
        if norm is None:
            row_linear(inner, linear.matrix, stream, bias=linear.bias, residual=stream, pdl=pdl)
            return
        self._partials = self._space.partial_sums[: linear.out_features].view(1, 1, -1)
        self._post_norm = norm
        row_linear(inner, linear.matrix, self._partials[0], bias=linear.bias, pdl=pdl)

    def follow(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        out, eps = self._following[linear.out_features], norm.eps
        row_linear(
            entered, linear.matrix, out, bias=linear.bias, norm_weight=norm.weight, eps=eps, pdl=self._pdl
        )
        return out

    def mix(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """See `Products`."""
        stream = self._stream
        logits, chosen = self._space.mixing.views(1, mixture)
        self._multiply(norm, mixture.router, logits[0])
        _choose(logits, mixture, chosen, pdl=self._pdl)
        feed_rows(
            stream,
            mixture.experts,
            chosen,
            self._mixed(),
            workspace=self._space.mixing.feeds,
            norm_weight=norm.weight,
            eps=norm.eps,
            pdl=self._pdl,
        )

    def _mixed(self) -> Tensor:
        """What experts add to."""
        return self._stream

    def _multiply(
        self, norm: RMSNorm | None, linear: Linear, out: Tensor, gate: Activation | None = None
    ) -> Tensor:
        x = self._stream
        if self._partials is not None:
            x, norm = self._complete(norm), None
        row_linear(
            x,
            linear.matrix,
            out,
            bias=linear.bias,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            gate=gate,
            pdl=self._pdl,
        )
        return out


class SkinnyProducts(FusedProducts):
    """A few tokens: whatever is added to the stream is left as partial sums."""

    def leave(self, inner: Tensor, linear: Linear, norm: RMSNorm | None = None, /) -> None:
        """See `Products`."""
        rows, size = len(inner), linear.out_features
        splits = split_count(rows, size, linear.in_features)
        self._partials = self._space.partial_sums[: splits * rows * size].view(splits, rows, size)
        self._bias, self._post_norm = linear.bias, norm
        split_linear(inner, linear.matrix, self._partials, pdl=self._pdl)

    def follow(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        out, workspace, pdl = self._following[linear.out_features], self._space.linear, self._pdl
        normed = _normed_columns(entered, norm, self._space, pdl=pdl)
        skinny_linear(normed, linear.matrix, out, bias=linear.bias, workspace=workspace, pdl=pdl)
        return out

    def mix(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """See `Products`."""
        rows, hidden = self._stream.shape
        pdl, space = self._pdl, self._space.mixing
        normed, router, slots = self._complete(norm), mixture.router, mixture.routing.slots
        logits, chosen = space.views(rows, mixture, split_count(rows, *router.weight.shape))
        split_linear(normed, router.matrix, logits, pdl=pdl)
        _choose(logits, mixture, chosen, router.bias, pdl=pdl)
        self._partials = self._space.partial_sums[: slots * rows * hidden].view(slots, rows, hidden)
        feed_lists(normed, mixture.experts, chosen, self._partials, workspace=space.feeds, pdl=pdl)

    def _multiply(
        self, norm: RMSNorm | None, linear: Linear, out: Tensor, gate: Activation | None = None
    ) -> Tensor:
        x, workspace, pdl = self._complete(norm), self._space.linear, self._pdl
        skinny_linear(x, linear.matrix, out, bias=linear.bias, gate=gate, workspace=workspace, pdl=pdl)
        return out


class WideProducts:
    """Many tokens: the arithmetic counts, and the product's own kernel adds to the stream, or after experts the next norm."""

    _invariant = False
    _partials: Tensor | None = None

    def __init__(self, stream: Tensor, space: Workspace, *, pdl: bool) -> None:
        self._space, self._pdl = space, pdl
        self._chosen: Tensor | None = None
        self._compute_for(stream)

    def _compute_for(self, stream: Tensor) -> None:
        rows = len(stream)
        self._stream, self._normed = stream, self._space.normed[:rows]
        self._entered, self._inner = Views(self._space.entered, rows), Views(self._space.inner, rows)
        self._following = Views(self._space.following, rows)

    def narrow(self, chosen: Tensor) -> None:
        """From the next `leave` on, compute for the tokens `chosen` alone: int32 indices [S] into the stream, S may be 0."""
        self._chosen = chosen

    def enter(self, norm: RMSNorm | None, linear: Linear, /) -> Tensor:
        """See `Products`."""
        out = self._entered[linear.out_features]
        if len(out):
            self._multiply(self.normed(norm), linear, out)
        return out

    def enter_gated(self, norm: RMSNorm | None, gate_up: Linear, activation: Activation, /) -> Tensor:
        """See `Products`."""
        out = self._inner[gate_up.out_features // 2]
        if len(out):
            gated_activation_into(self.enter(norm, gate_up), out, activation=activation, pdl=self._pdl)
        return out

    def leave(self, inner: Tensor, linear: Linear, norm: RMSNorm | None = None, /) -> None:
        """See `Products`."""
        # Not in `narrow`: the mixer between still needs every token's keys and values.
        if self._chosen is not None:
            chosen, self._chosen = self._chosen, None
            inner = chosen_rows(inner, chosen, Views(self._space.chosen_inner, len(chosen))[inner.shape[1]])
            self._compute_for(chosen_rows(self._stream, chosen, self._space.chosen[: len(chosen)]))
        if len(inner):
            self._add(inner, linear, norm)

    def follow(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        out = self._following[linear.out_features]
        if len(out):
            self._multiply(_normed_columns(entered, norm, self._space, pdl=self._pdl), linear, out)
        return out

    def mix(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """See `Products`."""
        rows, hidden = self._stream.shape
        if not rows:
            return
        normed, space, slots = self.normed(norm), self._space.mixing, mixture.routing.slots
        logits, chosen = space.views(rows, mixture)
        invariant_linear(normed, mixture.router.weight, logits[0], bias=mixture.router.bias)
        _choose(logits, mixture, chosen, pdl=self._pdl)
        self._partials = space.partials[: slots * rows * hidden].view(slots, rows, hidden)
        feed_lists(
            normed,
            mixture.experts,
            chosen,
            self._partials,
            workspace=space.feeds,
            invariant=self._invariant,
            pdl=self._pdl,
        )

    def normed(self, norm: RMSNorm | None) -> Tensor:
        """norm(stream), [T, hidden], valid until the next call; without a norm the stream itself."""
        stream, partials, self._partials = self._stream, self._partials, None
        if norm is None:
            if partials is not None:
                add_partials_into(stream, partials, eps=0.0, pdl=self._pdl)
            return stream
        if len(stream):
            add_rms_norm_into(
                stream, norm.weight, self._normed, partials=partials, eps=norm.eps, pdl=self._pdl
            )
        return self._normed

    def logits(self, norm: RMSNorm, head: Linear) -> Tensor:
        """head(norm(stream)), [B, vocab], valid until the next step."""
        out = self._space.logits[: len(self._stream)]
        self._multiply(self.normed(norm), head, out)
        return out

    def _multiply(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        self.multiply(x, self._widened(linear), linear.bias, out)

    @staticmethod
    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """X weight^T + bias into `out`."""
        if bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias, x, weight.t(), out=out)

    def _add(self, inner: Tensor, linear: Linear, norm: RMSNorm | None) -> None:
        if norm is None:
            self._add_product(inner, linear)
            return
        self._multiply(inner, linear, self._normed)
        branch = self._normed[None]
        add_partials_into(self._stream, branch, branch_norm=norm.weight, eps=norm.eps, pdl=self._pdl)

    def _add_product(self, inner: Tensor, linear: Linear) -> None:
        torch.addmm(self._stream, inner, self._widened(linear).t(), out=self._stream)
        if linear.bias is not None:
            self._stream += linear.bias

    def _widened(self, linear: Linear) -> Tensor:
        """The weight in the model's dtype: itself, or what it stands for where it is kept as stored, valid until the next call."""
        matrix = linear.matrix
        if not isinstance(matrix, StoredWeight):
            return matrix
        wide = self._space.widened[: linear.weight.numel()].view(matrix.shape)
        widen_into(matrix, wide)
        return wide


class InvariantProducts(WideProducts):
    """The same bits for a token alone and in any batch."""

    _invariant = True

    @staticmethod
    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """X weight^T + bias into `out`, each row with the same bits however many there are."""
        invariant_linear(x, weight, out, bias=bias)

    def _add_product(self, inner: Tensor, linear: Linear) -> None:
        stream = self._stream
        invariant_linear(inner, self._widened(linear), stream, bias=linear.bias, residual=stream)


def _choose(logits: Tensor, mixture: Mixture, out: Chosen, bias: Tensor | None = None, *, pdl: bool) -> None:
    choose_experts(logits, mixture.routing, out, bias=bias, correction=mixture.correction, pdl=pdl)


def _normed_columns(columns: Tensor, norm: RMSNorm, space: Workspace, *, pdl: bool) -> Tensor:
    """The norm of columns of a wider tensor, contiguous."""
    plain, normed = (each[: columns.numel()].view(columns.shape) for each in space.followed)
    plain.copy_(columns)
    add_rms_norm_into(plain, norm.weight, normed, eps=norm.eps, pdl=pdl)
    return normed


def chosen_rows(rows: Tensor, indices: Tensor, out: Tensor) -> Tensor:
    """Some rows of a tensor, in `out`."""
    return torch.index_select(rows, 0, indices, out=out)
