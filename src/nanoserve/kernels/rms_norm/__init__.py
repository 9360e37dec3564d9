"""Root-mean-square layer norm (Zhang and Sennrich 2019), optionally with the residual addition before it."""

from nanoserve.kernels.rms_norm.cpu import rms_norm

__all__ = ["rms_norm"]
