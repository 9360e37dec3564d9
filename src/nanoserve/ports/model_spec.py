"""A model's shape as plain numbers, independent of the format it was read from and of the code that runs it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Llama3RopeScaling:
    """Llama 3.1's frequency-dependent stretching of the rotary wavelengths (Grattafiori et al. 2024)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@attrs.frozen(kw_only=True)
class RopeSpec:
    """Rotary position embedding over the whole head: base `theta`, optionally rescaled."""

    theta: float = 10_000.0
    scaling: Llama3RopeScaling | None = None


@attrs.frozen(kw_only=True)
class CacheGroup:
    """Layers that share one block table, because their tokens stay visible for equally long.

    `window` is None for full attention; otherwise a query at position p sees positions p - window + 1 .. p.
    """

    layers: tuple[int, ...]
    window: int | None = None


@attrs.frozen(kw_only=True)
class ModelSpec:
    """The numbers that define a decoder-only transformer.

    Attributes:
        architecture: the key of the model page that runs it, such as `llama` or `qwen3`.
        max_position: the longest context, in tokens, that the model was made for.
        windows: per layer, the sliding window in tokens, or None for full attention.
        dtype: the name of the dtype its weights are stored in, such as `bfloat16`.
        eos_token_ids: the ids that end a sequence.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    dtype: str = "bfloat16"
    eos_token_ids: tuple[int, ...] = ()

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The layers by the window they see, in order of first appearance; one full group where none is set."""
        windows = self.windows or (None,) * self.num_layers
        return tuple(
            CacheGroup(layers=tuple(layer for layer, w in enumerate(windows) if w == window), window=window)
            for window in dict.fromkeys(windows)
        )

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of keys and values that one token keeps over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
