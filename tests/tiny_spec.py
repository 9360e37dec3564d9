"""The dimensions of tiny models, for tests that need some."""

from __future__ import annotations

from typing import Any

import attrs

from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LatentSpec, LayerSpec, RopeSpec
from nanoserve.ports.model_spec import ModelSpec, NormSpec


def tiny_spec(
    num_layers: int = 2,
    *,
    windows: tuple[int | None, ...] = (),
    size: int = 96,
    heads: tuple[int, int, int] = (4, 2, 16),
    **changes: Any,
) -> ModelSpec:
    """A spec of feeds of `size` and of `heads` (of queries, of keys and values, elements of each)."""
    num_heads, num_kv_heads, head_dim = heads
    mixer = AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    layers = tuple(
        LayerSpec(attrs.evolve(mixer, window=window), DenseSpec(size=size))
        for window in windows or (None,) * num_layers
    )
    sizes = {"hidden_size": 64, "vocab_size": 97, "max_position": 64, "tied_embeddings": False}
    return ModelSpec(
        **{"architecture": "llama", "norm": NormSpec(eps=1e-5), "layers": layers, **sizes, **changes}
    )


TINY = tiny_spec()
LATENT = LatentSpec(
    num_heads=3,
    latent_dim=20,
    rope_dim=6,
    nope_dim=10,
    value_dim=14,
    scale=0.25,
    rope=RopeSpec(),
    query_dim=28,
)
TINY_LATENT = attrs.evolve(
    TINY, architecture="deepseek_v2", layers=(LayerSpec(LATENT, DenseSpec(size=96)),) * 2
)
