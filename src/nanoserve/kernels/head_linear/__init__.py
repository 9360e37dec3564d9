"""A linear layer for each head: the products around latent attention, which take queries to latents and latents to values."""

from nanoserve.kernels.head_linear.cpu import fixed_head_linear, head_linear

__all__ = ["fixed_head_linear", "head_linear"]
