"""Qwen2 (Yang et al. 2024)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.llama import Llama


class Qwen2(Llama):
    """Llama with a bias on the projections to q, k and v, and on no other: `AttentionSpec.qkv_bias`."""
