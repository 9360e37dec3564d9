"""Products of a step with weights on a GPU: `LinearOps` has the residual stream, and four collaborators.

The *policy* says what is fused around a product, and depends on the number of rows (`policies.py`): of one row norm, gate and residual
addition; of up to 64 the gate, and what is added to the stream stays behind as partial sums, which the next norm adds up; of more nothing.
*Adapters* (`low_rank.py`), in steps whose rows have some, add to each product what they make of its input. The *sums* say who else adds to the
stream: nobody (`sums.py`), or other ranks (`ranks/exchange.py`). The *form* of a weight is its own (`Linear.matrix`), and kernels ask it what to
load. Nothing here allocates or waits, so that a step can be captured in a graph. Next: what attention computes, `kernels/paged.py`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.low_rank import Shrink
from nanoserve.adapters.pytorch.cuda.many_rows import Ungated
from nanoserve.adapters.pytorch.cuda.sums import Norm, Pending, Sums
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.layers.norm import LayerNorm, RMSNorm
from nanoserve.adapters.pytorch.layers.product import Mixture
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.linear.low_rank.launch import Delta, Gated, expand_into
from nanoserve.kernels.pointwise.launch import add_rms_norm_into, layer_norm_into
from nanoserve.ports.layer_spec import Activation

Gate = Activation | None
AnyNorm = Norm | LayerNorm


class Policy(Protocol):
    """The fusion around the products of a step; `norms` says if the norm before them is a part of it."""

    norms: bool

    def multiply(
        self, ops: LinearOps, x: Tensor, linear: Linear, out: Tensor, norm: Norm = None, *, gate: Gate = None
    ) -> None:
        """gate(linear(norm(x))) in `out`; without a norm where the policy has none."""

    def add(self, ops: LinearOps, inner: Tensor, linear: Linear, norm: Norm) -> None:
        """Add norm(linear(inner)) to the stream, now or with the next norm."""

    def add_experts(self, ops: LinearOps, norm: RMSNorm, mixture: Mixture) -> None:
        """Add what its experts make of each token's norm(stream)."""


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
        low_rank: Shrink | None = None,
    ) -> None:
        self.policy, self.sums, self.space, self.low_rank, self.pdl = policy, sums, space, low_rank, pdl
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
        elif len(out):  # the columns of a wider tensor are made contiguous, then normed
            plain, normed = (each[: columns.numel()].view(columns.shape) for each in self.space.followed)
            plain.copy_(columns)
            add_rms_norm_into(plain, norm.weight, normed, eps=norm.eps, pdl=self.pdl)
            self.policy.multiply(self, normed, linear, out)
        return out

    def project_out(self, inner: Tensor, linear: Linear, norm: AnyNorm = None, /) -> None:
        assert not isinstance(norm, LayerNorm), "families with layer norms add what is not normed"
        # Not in `narrow`: the mixer between still needs every token's keys and values.
        if self._chosen is not None:
            chosen, self._chosen = self._chosen, None
            out = Views(self.space.chosen_inner, len(chosen))[inner.shape[1]]
            inner = torch.index_select(inner, 0, chosen, out=out)
            self._compute_for(
                torch.index_select(self.stream, 0, chosen, out=self.space.chosen[: len(chosen)])
            )
        if len(inner):
            self.policy.add(self, inner, linear, norm)

    def norm_stream(self, norm: AnyNorm, /) -> None:
        if isinstance(norm, LayerNorm):
            stream = self.complete(None)
            layer_norm_into(stream, norm.weight, norm.bias, stream, eps=norm.eps)
        elif norm is not None:
            self.stream.copy_(self.complete(norm)[: len(self.stream)])

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
        return self.low_rank(x, linear, None if norm is None else norm.weight)

    def adapt(self, x: Tensor, linear: Linear, product: Tensor, gate: Gated | None = None) -> bool:
        """Add to a product what adapters make of x; with a gate write the gated product instead. False if there are none."""
        if (delta := self.shrink(x, linear)) is not None:
            expand_into(delta, product, gate, pdl=self.pdl)
        return delta is not None

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

    def slices(self, count: int) -> Tensor:
        """Float32 [count, rows, hidden], for what few tokens' products leave."""
        rows, hidden = self.stream.shape
        return self.space.partial_sums[: count * rows * hidden].view(count, rows, hidden)
