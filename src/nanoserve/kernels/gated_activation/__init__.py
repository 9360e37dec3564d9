"""Gates, in float32: activation(gate) * up of feeds (Shazeer 2020), and x * sigmoid(gate) of gated attention."""

from nanoserve.kernels.gated_activation.cpu import (
    gated_activation,
    invariant_gated_activation,
    invariant_sigmoid_mul,
    sigmoid_mul,
)

__all__ = ["gated_activation", "invariant_gated_activation", "invariant_sigmoid_mul", "sigmoid_mul"]
