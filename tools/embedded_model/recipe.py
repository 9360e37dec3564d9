"""Every number of the training run in one place: the model's shape, the data and the schedule."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
from transformers import GenerationConfig, LlamaConfig

from tools.embedded_model.corpus.documents import BOS, EOS, SEED, Course
from tools.embedded_model.tokenizer import CONTEXT, PAD, SPECIAL_TOKENS, VOCAB_SIZE


@attrs.frozen(kw_only=True)
class Recipe:
    """One stage of training: on what, on how much, and how fast; `rows` are packed sequences of `CONTEXT` + 1 tokens."""

    course: Course
    rows_per_shard: int
    steps: int
    warmup_steps: int
    peak_learning_rate: float
    final_learning_rate: float
    seed: int = SEED
    shards: int = 64
    rows_per_step: int = 64
    weight_decay: float = 0.1

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to the final rate (Loshchilov & Hutter 2017)."""
        if step < self.warmup_steps:
            return self.peak_learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        height = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_learning_rate + (self.peak_learning_rate - self.final_learning_rate) * height


STAGES: Final[dict[str, Recipe]] = {
    "texts": Recipe(
        course="texts",
        rows_per_shard=3800,
        steps=3800,
        warmup_steps=200,
        peak_learning_rate=3e-3,
        final_learning_rate=3e-5,
    ),
    "tools": Recipe(
        course="tools",
        rows_per_shard=600,
        steps=1000,
        warmup_steps=50,
        peak_learning_rate=1.5e-3,
        final_learning_rate=1e-5,
    ),
    "names": Recipe(
        course="tools",
        rows_per_shard=400,
        steps=540,
        warmup_steps=30,
        peak_learning_rate=1.5e-3,
        final_learning_rate=1e-5,
    ),
}
"""By name; the first stage begins from nothing, each other one with the weights of the one before."""


def model_config() -> LlamaConfig:
    """A Llama with grouped-query attention (8 query heads, 4 key-value heads of 32) and tied embeddings."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )


def generation_config() -> GenerationConfig:
    """Sampling defaults: temperature 0.7, top-p 0.9, stop at the end token."""
    make: type[Any] = GenerationConfig
    config: GenerationConfig = make(
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )
    return config
