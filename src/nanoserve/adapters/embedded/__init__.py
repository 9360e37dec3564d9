"""The model in the box: a small Llama that ships inside the package, for a first run with no download and no GPU."""

from __future__ import annotations

from pathlib import Path


def model_folder() -> Path:
    """The folder of the shipped model.

    It holds `config.json`, `generation_config.json`, `model.safetensors` (bfloat16), the tokenizer's files, the chat
    template and a model card, and loads unchanged with transformers' `from_pretrained`.
    """
    return Path(__file__).parent / "model"


def head_folder() -> Path:
    """The folder of a head that drafts for it (EAGLE-3); `tools/embedded_model/draft_head.py` trained it."""
    return Path(__file__).parent / "head"
