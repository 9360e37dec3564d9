"""Mistral (Jiang et al. 2023)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.llama import Llama


class Mistral(Llama):
    """Llama with a sliding window, `AttentionSpec.window` (later releases have none)."""
