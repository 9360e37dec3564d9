"""Operations on each row or element alone: norms of rows, and gates.

Layer norms (Ba et al. 2016) of encoders. Root-mean-square layer norms (Zhang and Sennrich 2019) of the residual stream, with the addition before it, and of queries and keys:
those of whole vectors, all heads of a token together (OLMo, MiniMax), come with a bound for these and the values.
Gates are activation(gate) * up of feeds (Shazeer 2020), and x * sigmoid(gate) of gated attention. All of it is float32.
"""

from nanoserve.kernels.pointwise.cpu import (
    activated,
    gated_activation,
    invariant_activated,
    invariant_gated_activation,
    invariant_sigmoid_mul,
    layer_norm,
    norm_qkv,
    rms_norm,
    sigmoid_mul,
)

__all__ = [
    "activated",
    "gated_activation",
    "invariant_activated",
    "invariant_gated_activation",
    "invariant_sigmoid_mul",
    "layer_norm",
    "norm_qkv",
    "rms_norm",
    "sigmoid_mul",
]
