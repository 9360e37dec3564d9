"""Norms and gates by torch's own operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.gates import Activation
from nanoserve.kernels.whole_vectors import in_whole_vectors


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector of `x` to a root mean square of one, then by `weight`.

    Args:
        x: [..., size], float32 or bfloat16; the arithmetic is float32 either way.
        weight: [size], in the dtype of `x`: the normed vector is rounded to it before the product; or float32: after it.
        eps: added to the mean square.

    Returns:
        [..., size] in the dtype of `x`.
    """
    is_wide = x.dtype == torch.float32
    wide = x if is_wide else x.float()
    square = torch.addcdiv(_scalar(eps), (wide * wide).sum(-1, keepdim=True), _scalar(float(x.shape[-1])))
    normed = wide * square.rsqrt_()
    return normed.mul_(weight) if is_wide else normed.to(weight.dtype).mul_(weight).to(x.dtype)


@functools.cache
def _scalar(value: float) -> Tensor:
    """A number as a tensor: operators take longer to make one than to compute with it."""
    return torch.tensor(value)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Shift and scale each vector of `x` to a mean of zero and a variance of one, then by `weight`, and add `bias`.

    Args:
        x: [..., size], float32 or bfloat16; the arithmetic is float32 either way.
        weight: [size], in the dtype of `x`.
        bias: like `weight`; None for none.
        eps: added to the variance.

    Returns:
        [..., size] in the dtype of `x`.
    """
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def norm_qkv(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    *,
    eps: float,
    clip: float | None,
    sizes: tuple[int, int],
) -> Tensor:
    """Norm each token's whole query and key, then bound all elements; returns a tensor like `qkv` [T, Q + K + V].

    Arguments are those of `launch.norm_qkv_into`; the dtype of a norm's weight says when products are rounded, as in `rms_norm`.
    """
    q, k, v = torch.split(qkv, [*sizes, qkv.shape[1] - sum(sizes)], dim=1)
    normed = [x if weight is None else rms_norm(x, weight, eps) for x, weight in ((q, q_norm), (k, k_norm))]
    joined = torch.cat((*normed, v), dim=1)
    return joined if clip is None else joined.clamp_(-clip, clip)


_FUNCTIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


def activated(x: Tensor, activation: Activation) -> Tensor:
    """The activation of each element, of any shape."""
    return _FUNCTIONS[activation](x)


def invariant_activated(x: Tensor, activation: Activation) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    return in_whole_vectors(_FUNCTIONS[activation], x)


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Compute activation(gate) * up.

    Args:
        gate_up: [..., 2 * size], the gate in the first half and the up projection in the second.
        activation: of the gate.

    Returns:
        [..., size] in the dtype of `gate_up`.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return _FUNCTIONS[activation](gate).mul_(up)


def invariant_gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    gate, up = gate_up.chunk(2, dim=-1)
    return in_whole_vectors(_FUNCTIONS[activation], gate).mul_(up)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply `x` by sigmoid(gate): of one shape and dtype, which is the result's, too."""
    return x * torch.sigmoid(gate)


def invariant_sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    return x * in_whole_vectors(torch.sigmoid, gate)
