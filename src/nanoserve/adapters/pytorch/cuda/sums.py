"""The residual stream's sums and the logits, if one GPU computes a model."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.kernels.pointwise.launch import add_partials_into, add_rms_norm_into

Norm = RMSNorm | None


class Pending(NamedTuple):
    """The addition that the stream lacks until the next norm: the sum of slices [S, rows, hidden] and a bias, normed if there is a norm."""

    slices: Tensor
    bias: Tensor | None = None
    norm: Norm = None


class Sums:
    """Sums of a GPU that computes a model by itself; `ranks.exchange.Exchange` makes those of several."""

    def begin(self, *, sends: bool = False) -> None:
        """A step begins, which `sends` few rows' parts to other ranks if there are any."""

    def part(self, _rows: int, /) -> Tensor | None:
        """[rows, hidden], where this rank's part of the next sum belongs; None if there are no other parts."""
        return None

    def join(
        self,
        slices: Tensor,
        bias: Tensor | None,
        _chosen: Tensor | None = None,
        *,
        pdl: bool,  # noqa: ARG002 - slices wait as they are
    ) -> tuple[Tensor, Tensor | None]:
        """Slices and a bias as `Pending` has them."""
        return slices, bias

    def complete(self, stream: Tensor, pending: Pending, norm: Norm, out: Tensor, *, pdl: bool) -> None:
        """Add the pending parts to the stream, and write its norm, if there is one, to `out`; one kernel."""
        slices, bias, post_norm = pending
        branch_norm = None if post_norm is None else post_norm.weight
        if norm is None:
            eps = 0.0 if post_norm is None else post_norm.eps
            add_partials_into(stream, slices, bias=bias, branch_norm=branch_norm, eps=eps, pdl=pdl)
        else:
            more = {"partials": slices, "bias": bias, "branch_norm": branch_norm}
            add_rms_norm_into(stream, norm.weight, out, **more, eps=norm.eps, pdl=pdl)

    def columns(self, logits: Tensor, _width: int, /) -> Tensor:
        """[B, width], where this rank's columns of logits [B, vocab] belong until `gather` has filled those in."""
        return logits

    def gather(self, logits: Tensor, *, pdl: bool = False) -> None:
        """Fill the columns of all ranks in."""
