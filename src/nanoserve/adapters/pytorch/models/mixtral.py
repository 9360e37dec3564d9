"""Mixtral (Jiang et al. 2024)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.qwen3_moe import Qwen3Moe


class Mixtral(Qwen3Moe):
    """Mistral with a mixture of experts in every layer, which checkpoints name otherwise: `ExpertsSpec.names`."""
