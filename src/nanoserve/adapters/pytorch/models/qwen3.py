"""Qwen3 (Yang et al. 2025), the dense models."""

from __future__ import annotations

import attrs

from nanoserve.adapters.pytorch.models.llama import Llama
from nanoserve.ports.model_spec import ModelSpec


class Qwen3(Llama):
    """Llama with an RMS norm over each head of q and k, before the rotation."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(attrs.evolve(spec, qk_norm=True))
