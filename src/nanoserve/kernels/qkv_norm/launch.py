"""Norms of whole queries and keys on a GPU, in place."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.qkv_norm.triton import norm_qkv_kernel
from nanoserve.kernels.triton_launch import launch_options


def norm_qkv_into(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    *,
    eps: float,
    clip: float | None,
    sizes: tuple[int, int],
    pdl: bool = False,
) -> None:
    """Norm each token's whole query and key, then bound all elements; in float32, each token by itself.

    Args:
        qkv: [T, Q + K + V], contiguous, projections, updated in place.
        q_norm: [Q], any float dtype, or None where queries stay as they are.
        k_norm: [K], likewise.
        eps: of the norms, added to the mean square.
        clip: the bound c of elements, which become at least -c and at most c; None for none.
        sizes: Q and K.
        pdl: see `nanoserve.kernels.triton_launch`. Nothing is read before the wait.
    """
    q, k = sizes
    v = qkv.shape[1] - q - k
    block = triton.next_power_of_2(max(q, k, v))
    norm_qkv_kernel[(len(qkv), 2 if clip is None else 3)](
        qkv, q_norm, k_norm, eps, clip or 0.0,
        Q=q, K=k, V=v, BLOCK=block, CLIPPED=clip is not None, PDL=pdl, num_warps=min(16, max(1, block // 256)),
        **launch_options(pdl),
    )  # fmt: skip
