"""MiniMax-M2 (MiniMax 2025)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.models.qwen3_moe import Qwen3Moe


class MiniMaxM2(Qwen3Moe):
    """Norms q and k over all heads together, turns a part of a head, and chooses experts by corrected sigmoids."""
