"""Qwen3 (Yang et al. 2025), the dense models."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.llama import Llama


class Qwen3(Llama):
    """Llama with an RMS norm over each head of q and k, before the rotation: `AttentionSpec.qk_norm`."""
