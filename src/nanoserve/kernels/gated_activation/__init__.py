"""The gate of a feed-forward network (Shazeer 2020): an activation of one half times the other half."""

from nanoserve.kernels.gated_activation.cpu import gated_activation, invariant_gated_activation

__all__ = ["gated_activation", "invariant_gated_activation"]
