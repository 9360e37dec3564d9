"""The operation between the projections and attention: norm of heads, rotary position embedding, and the write into the paged cache.

Rotation (Su et al. 2021) is in the rotate-half layout of Hugging Face checkpoints. In latent attention the latent is normed, the one
key of all heads rotated, and both are written; the part of each query head that has a position is rotated to behind the part that is
absorbed.
"""

from nanoserve.kernels.rope_and_cache.cpu import apply_rotation, rotation

__all__ = ["apply_rotation", "rotation"]
