"""Adapters made and saved with PEFT, and the models that it makes of base and adapter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.unit.adapters.pytorch.tiny_models import TinyModel

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(
    tiny: TinyModel,
    folder: Path,
    *,
    rank: int = 8,
    targets: Sequence[str] | str = LINEARS,
    seed: int = 0,
    **config: Any,
) -> Any:
    """Save an adapter whose factors are all random; returns the base with it merged in, by PEFT in float32."""
    import peft  # noqa: PLC0415 - takes a second

    asked = peft.LoraConfig(
        r=rank,
        lora_alpha=config.pop("lora_alpha", 2 * rank),
        target_modules=targets if isinstance(targets, str) else list(targets),
        **config,
    )
    model = peft.get_peft_model(copy.deepcopy(tiny.reference), asked)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                scale = 0.5 * tensor.shape[-1] ** -0.5
                tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
    model.save_pretrained(str(folder))
    return model.merge_and_unload().eval()
