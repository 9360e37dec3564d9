"""Launches of norms and gates."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.device.launch import launch_options, next_power_of_2
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.pointwise.triton import (
    add_rms_norm_kernel,
    gated_activation_kernel,
    layer_norm_kernel,
    norm_qkv_kernel,
    sigmoid_mul_kernel,
)


def add_rms_norm_into(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    partials: Tensor | None = None,
    bias: Tensor | None = None,
    branch_norm: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Add partials[0], partials[1], ... and the bias to `x`, in this order and in float32, then norm what `x` has become.

    The norm is that of the sum as rounded to the dtype of `x`, which is what any later reader of `x` sees.

    Args:
        x: [M, K], contiguous; the residual stream, updated in place, left alone where `partials` is None.
        weight: [K], of the norm, in the dtype of `x` or float32: products are float32 either way, and rounded once.
        out: [M, K], contiguous, any float dtype; x / rms(x) * weight. It may not be `x`.
        eps: added to the mean square, of both norms if there are two.
        partials: [S, M, K], contiguous, any float dtype; what a product over S slices has left to be added.
        bias: [K], of that product; only with `partials`.
        branch_norm: [K], like `weight`: the sum of the partials and the bias is normed with it before it is added; only with
            `partials`.
        pdl: see `nanoserve.kernels.device.pdl`. Weights and bias are read before the wait.

    Raises:
        ValueError: `bias` or `branch_norm` without `partials`.
    """
    if partials is None and (bias is not None or branch_norm is not None):
        raise ValueError("a bias or a norm belongs to partial sums, and there are none")
    added = {"partials_ptr": partials, "bias_ptr": bias, "branch_norm_ptr": branch_norm}
    _launch(x, {**added, "weight_ptr": weight, "out_ptr": out}, eps=eps, pdl=pdl)


def layer_norm_into(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, eps: float) -> None:
    """Write (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, of each row alone; arithmetic is float32.

    Args:
        x: [M, K], contiguous.
        weight: [K].
        bias: [K]; None for none.
        out: like `x`, and may be `x` itself.
        eps: added to the variance.
    """
    if not len(x):
        return
    block = next_power_of_2(x.shape[1])
    layer_norm_kernel[len(x),](
        x_ptr=x, weight_ptr=weight, bias_ptr=bias, out_ptr=out, eps=eps, K=x.shape[1], BLOCK=block,
        num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip


def add_partials_into(
    x: Tensor,
    partials: Tensor,
    *,
    eps: float,
    bias: Tensor | None = None,
    branch_norm: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Add a product's result to `x`, normed if asked; arguments as in `add_rms_norm_into`, which also norms the sum."""
    added = {"partials_ptr": partials, "bias_ptr": bias, "branch_norm_ptr": branch_norm}
    _launch(x, {**added, "weight_ptr": None, "out_ptr": None}, eps=eps, pdl=pdl)


def _launch(x: Tensor, pointers: dict[str, Tensor | None], *, eps: float, pdl: bool) -> None:
    (num_rows, size), partials = x.shape, pointers["partials_ptr"]
    add_rms_norm_kernel[(num_rows,)](
        x_ptr=x, **pointers,
        M=num_rows, eps=eps,
        K=size, BLOCK=next_power_of_2(size), SPLITS=0 if partials is None else len(partials),
        PDL=pdl, num_warps=_warps(size), **launch_options(pdl),
    )  # fmt: skip


def _warps(size: int) -> int:
    """Eight elements per thread, however many rows: the warps decide the order of the sum, so its bits."""
    return min(16, max(1, next_power_of_2(size) // (32 * 8)))


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
        q_norm: [Q], any float dtype, or None if queries stay as they are.
        k_norm: [K], likewise.
        eps: of the norms, added to the mean square.
        clip: the bound c of elements, which become at least -c and at most c; None for none.
        sizes: Q and K.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    q, k = sizes
    v = qkv.shape[1] - q - k
    block = next_power_of_2(max(q, k, v))
    norm_qkv_kernel[(len(qkv), 2 if clip is None else 3)](
        qkv_ptr=qkv, q_norm_ptr=q_norm, k_norm_ptr=k_norm,
        eps=eps, clip=clip or 0.0,
        Q=q, K=k, V=v, BLOCK=block,
        CLIPPED=clip is not None, PDL=pdl, num_warps=min(16, max(1, block // 256)), **launch_options(pdl),
    )  # fmt: skip


_BLOCK = 1024
"""Elements per program: with four warps, one wide load of each half per thread."""


def gated_activation_into(gate_up: Tensor, out: Tensor, *, activation: Activation, pdl: bool = False) -> None:
    """Compute out = activation(gate) * up, in float32.

    Args:
        gate_up: [M, 2 * size], contiguous, the gate in the first half and the up projection in the second.
        out: [M, size], contiguous, any float dtype; apart from `gate_up`.
        activation: of the gate.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = out.shape
    gated_activation_kernel[(num_rows * -(-size // _BLOCK),)](
        gate_up_ptr=gate_up, out_ptr=out,
        SIZE=size, BLOCK=_BLOCK,
        ACTIVATION=activation, PDL=pdl, num_warps=4, **launch_options(pdl),
    )  # fmt: skip


def sigmoid_mul_into(x: Tensor, gate: Tensor, *, pdl: bool = False) -> None:
    """Multiply `x` by sigmoid(gate), in float32.

    Args:
        x: [M, size], contiguous, any float dtype; changed in place.
        gate: [M, size], rows contiguous; apart from `x`.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = x.shape
    sigmoid_mul_kernel[(num_rows * -(-size // _BLOCK),)](
        x_ptr=x, gate_ptr=gate, gate_stride=gate.stride(0),
        SIZE=size, BLOCK=_BLOCK,
        PDL=pdl, num_warps=4, **launch_options(pdl),
    )  # fmt: skip
