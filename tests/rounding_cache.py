"""transformers' cache with keys and values rounded to 8-bit floats: what a model computes with that keeps them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.weights.kv_scales import kv_scales


class RoundingCache(DynamicCache):  # type: ignore[misc]
    """Rounds those of the layers that have scales, float32 [2, num_kv_heads]."""

    def __init__(self, config: Any, scales: Mapping[int, Tensor]) -> None:
        super().__init__(config=config)
        self.scales = scales

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As in transformers, where heads are [batch, num_kv_heads, tokens, head_dim]."""
        if layer_idx in self.scales:
            key_scale, value_scale = self.scales[layer_idx][:, :, None, None]
            key_states, value_states = rounded(key_states, key_scale), rounded(value_states, value_scale)
        kept: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return kept


def rounded(numbers: Tensor, scale: Tensor) -> Tensor:
    """Numbers as they come back: a 4-bit significand, from 2^-9 to 448 times the scale, by arithmetic alone."""
    scaled = (numbers.float() / scale).clamp(-448, 448)
    step = torch.exp2(scaled.abs().clamp(min=2.0**-6).log2().floor() - 3)
    return ((scaled / step).round() * step * scale).to(numbers.dtype)


class Rounding:
    """A reference that computes as over such a cache."""

    def __init__(self, reference: Any, model: DecoderModel) -> None:
        self._reference, self._scales = reference, kv_scales(model)
        assert self._scales

    def __call__(self, token_ids: Tensor) -> Any:
        """Logits of all tokens, each of which reads rounded keys and values, its own included."""
        cache = RoundingCache(self._reference.config, self._scales)
        return self._reference(token_ids, past_key_values=cache, use_cache=True)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Float32 [T, vocab]."""
        with torch.inference_mode():
            logits: Tensor = self(torch.tensor([list(token_ids)])).logits[0]
        return logits
