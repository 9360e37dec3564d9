"""The gate of SwiGLU (Shazeer 2020): SiLU of one half times the other half."""

from nanoserve.kernels.silu_mul.cpu import silu_mul

__all__ = ["silu_mul"]
