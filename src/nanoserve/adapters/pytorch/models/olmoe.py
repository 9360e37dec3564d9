"""OLMoE (Muennighoff et al. 2024)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.qwen3_moe import Qwen3Moe


class Olmoe(Qwen3Moe):
    """Norms q and k over all heads together and bounds q, k and v: `AttentionSpec.qk_norm` and `clip`."""
