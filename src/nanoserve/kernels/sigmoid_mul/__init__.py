"""The gate of gated attention: x * sigmoid(gate), in float32."""

from nanoserve.kernels.sigmoid_mul.cpu import sigmoid_mul

__all__ = ["sigmoid_mul"]
