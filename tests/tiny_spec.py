"""The dimensions of a tiny model, for tests that need some."""

from __future__ import annotations

from nanoserve.ports.model_spec import ModelSpec, RopeSpec

TINY = ModelSpec(
    architecture="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=97,
    max_position=64,
    norm_eps=1e-5,
    rope=RopeSpec(),
    tied_embeddings=False,
)
