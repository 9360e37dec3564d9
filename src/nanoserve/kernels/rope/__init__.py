"""Rotary position embedding (Su et al. 2021) in the rotate-half layout of Hugging Face checkpoints."""

from nanoserve.kernels.rope.cpu import apply_rotation, rotation

__all__ = ["apply_rotation", "rotation"]
