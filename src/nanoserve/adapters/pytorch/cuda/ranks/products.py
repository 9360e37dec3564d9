"""The products of `cuda/products.py` where several GPUs compute one model: what is added to the stream is a part, and all parts are added with the next norm."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nanoserve.adapters.pytorch.cuda.products import (
    InvariantProducts,
    RowProducts,
    SkinnyProducts,
    WideProducts,
)
from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.layers.mixture import Mixture
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.linear.launch import row_linear, skinny_linear, split_linear
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.rank_sums.launch import add_slots_into

LEAST_SPLIT_ROWS: Final = 17
"""From so many on a product by itself does not cut K into slices, and would leave most of the device idle."""


class _Parts:
    """What they share: `_partials`, if there are some, is this rank's part, in memory that all ranks read."""

    _exchange: Exchange
    _stream: Tensor
    _space: Workspace
    _pdl: bool
    _partials: Tensor | None
    _post_norm: RMSNorm | None

    def _add_up(self, norm: RMSNorm | None) -> Tensor:
        """Add all parts to the stream; its norm, or the stream itself."""
        stream, post_norm = self._stream, self._post_norm
        out = None if norm is None else self._space.normed[: len(stream)]
        self._partials = self._post_norm = None
        self._exchange.add_into(stream, norm=norm, out=out, branch_norm=post_norm, pdl=self._pdl)
        return stream if out is None else out

    def _add_slots(self) -> None:
        """Make one part of what the experts have left."""
        if self._partials is not None:
            part = self._exchange.part(len(self._stream))
            add_slots_into(self._partials, part, pdl=self._pdl)
            self._partials = part

    def _shard(self, head: Linear) -> Tensor:
        return self._exchange.shard(len(self._stream), head.out_features)

    def _gathered(self) -> Tensor:
        logits = self._space.logits[: len(self._stream)]
        self._exchange.gather_into(logits, pdl=self._pdl)
        return logits


class RankRowProducts(_Parts, RowProducts):
    """One token."""

    def __init__(self, stream: Tensor, space: Workspace, *, pdl: bool, exchange: Exchange) -> None:
        super().__init__(stream, space, pdl=pdl)
        self._exchange = exchange

    def leave(self, inner: Tensor, linear: Linear, norm: RMSNorm | None = None, /) -> None:
        """See `Products`."""
        self._partials, self._post_norm = part, _ = self._exchange.part(1), norm
        row_linear(inner, linear.matrix, part, bias=linear.bias, pdl=self._pdl)

    def logits(self, norm: RMSNorm, head: Linear) -> Tensor:
        """See `FusedProducts`."""
        self._multiply(norm, head, self._shard(head))
        return self._gathered()

    def _complete(self, norm: RMSNorm | None) -> Tensor:
        return super()._complete(norm) if self._partials is None else self._add_up(norm)

    def _mixed(self) -> Tensor:
        self._partials = part = self._exchange.part(1).zero_()
        return part


class RankSkinnyProducts(_Parts, SkinnyProducts):
    """A few tokens."""

    def __init__(self, stream: Tensor, space: Workspace, *, pdl: bool, exchange: Exchange) -> None:
        super().__init__(stream, space, pdl=pdl)
        self._exchange = exchange

    def leave(self, inner: Tensor, linear: Linear, norm: RMSNorm | None = None, /) -> None:
        """See `Products`."""
        rows, size, pdl = len(inner), linear.out_features, self._pdl
        self._partials, self._post_norm = part, _ = self._exchange.part(rows), norm
        if rows < LEAST_SPLIT_ROWS:
            workspace = self._space.linear
            skinny_linear(inner, linear.matrix, part, bias=linear.bias, workspace=workspace, pdl=pdl)
            return
        splits = split_count(rows, size, linear.in_features)
        slices = self._space.partial_sums[: splits * rows * size].view(splits, rows, size)
        split_linear(inner, linear.matrix, slices, pdl=pdl)
        add_slots_into(slices, part, bias=linear.bias, pdl=pdl)

    def mix(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """See `Products`."""
        super().mix(norm, mixture)
        self._add_slots()

    def logits(self, norm: RMSNorm, head: Linear) -> Tensor:
        """See `FusedProducts`."""
        self._multiply(norm, head, self._shard(head))
        return self._gathered()

    def _complete(self, norm: RMSNorm | None) -> Tensor:
        return super()._complete(norm) if self._partials is None else self._add_up(norm)


class RankWideProducts(_Parts, WideProducts):
    """Many tokens."""

    def __init__(self, stream: Tensor, space: Workspace, *, pdl: bool, exchange: Exchange) -> None:
        super().__init__(stream, space, pdl=pdl)
        self._exchange, self._post_norm = exchange, None

    def mix(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """See `Products`."""
        super().mix(norm, mixture)
        self._add_slots()

    def normed(self, norm: RMSNorm | None) -> Tensor:
        """See `WideProducts`."""
        return super().normed(norm) if self._partials is None else self._add_up(norm)

    def logits(self, norm: RMSNorm, head: Linear) -> Tensor:
        """See `WideProducts`."""
        self._multiply(self.normed(norm), head, self._shard(head))
        return self._gathered()

    def _add(self, inner: Tensor, linear: Linear, norm: RMSNorm | None) -> None:
        self._partials, self._post_norm = part, _ = self._exchange.part(len(inner)), norm
        self._multiply(inner, linear, part)


class RankInvariantProducts(RankWideProducts, InvariantProducts):
    """The same bits for a token alone and in any batch."""
