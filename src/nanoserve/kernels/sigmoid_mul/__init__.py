"""The gate of gated attention: x * sigmoid(gate), in float32."""

from nanoserve.kernels.sigmoid_mul.cpu import invariant_sigmoid_mul, sigmoid_mul

__all__ = ["invariant_sigmoid_mul", "sigmoid_mul"]
