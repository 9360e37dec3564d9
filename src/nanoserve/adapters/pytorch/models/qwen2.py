"""Qwen2 (Yang et al. 2024)."""

from __future__ import annotations

import attrs

from nanoserve.adapters.pytorch.models.llama import Llama
from nanoserve.ports.model_spec import ModelSpec


class Qwen2(Llama):
    """Llama with a bias on the projections to q, k and v, and on no other."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(attrs.evolve(spec, qkv_bias=True))
