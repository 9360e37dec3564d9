"""A model's shape as plain numbers, independent of the format it was read from and of the code that runs it."""

from __future__ import annotations

from collections.abc import Sequence

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


@attrs.frozen
class Full:
    """A token reads every earlier token's keys and values, its own included."""


@attrs.frozen
class Window:
    """A token at position p reads the keys and values of positions p - tokens + 1 to p."""

    tokens: int


@attrs.frozen
class Latent:
    """A token reads every earlier token's latent vector, from which the keys and values of all heads are made (MLA)."""


@attrs.frozen
class Recurrent:
    """A token reads one state, made of all earlier tokens, and overwrites it.

    So a state can be reused only at a length at which a copy of it, a snapshot, was kept.

    Attributes:
        prompt_interval: tokens from one snapshot to the next in a long prompt, and
        decode_interval: while decoding; both are rounded up to whole blocks.
        element_bytes: of one number; states are kept in float32 whatever the weights are.
    """

    prompt_interval: int = 2048
    decode_interval: int = 256
    element_bytes: int = 4


CacheKind = Full | Window | Latent | Recurrent


@attrs.frozen(kw_only=True)
class CacheGroup:
    """Layers that share one block table, because they keep their tokens, or what was made of them, for equally long.

    Attributes:
        kind: what its layers read, from which `domain/kv/laws.py` derives what may go and what can be reused.
        elements: numbers that one layer keeps of one token, or in a recurrent group of one row's whole past.
    """

    layers: tuple[int, ...]
    kind: CacheKind = Full()
    elements: int = 0

    @property
    def window(self) -> int | None:
        """The sliding window in tokens; None where the kind has none."""
        return self.kind.tokens if isinstance(self.kind, Window) else None

    def page_bytes(self, block_size: int, element_bytes: int) -> int:
        """Bytes of one block, or of one recurrent state, over all its layers."""
        if isinstance(self.kind, Recurrent):
            return len(self.layers) * self.elements * self.kind.element_bytes
        return len(self.layers) * self.elements * block_size * element_bytes


@attrs.frozen(kw_only=True)
class PoolNeed:
    """How many pages, blocks or states, the pool of one cache group can use.

    Attributes:
        least: with fewer, not even one sequence of the longest length fits.
        per_row, fixed: more than `fixed` and `per_row` for each running sequence are of no use.
        usual: what a sequence of usual length holds, where more pages always hold more text: such groups share what
            the others leave. None where the law bounds what a row can use.
    """

    least: int
    per_row: int
    fixed: int = 0
    usual: int | None = None

    def most(self, num_rows: int) -> int:
        """Pages of use to so many running sequences, or to one of the longest length."""
        return max(self.least, num_rows * self.per_row + self.fixed)


def per_group(num_blocks: int | Sequence[int], num_groups: int) -> tuple[int, ...]:
    """Blocks of each of so many cache groups; one number is that of every group."""
    counts = (num_blocks,) if isinstance(num_blocks, int) else tuple(num_blocks)
    if len(counts) == 1:
        return counts * num_groups
    if len(counts) != num_groups:
        raise ValueError(f"blocks of {len(counts)} groups were given and there are {num_groups}")
    return counts


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
            CacheGroup(
                layers=tuple(layer for layer, w in enumerate(windows) if w == window),
                kind=Full() if window is None else Window(window),
                elements=2 * self.num_kv_heads * self.head_dim,
            )
            for window in dict.fromkeys(windows)
        )

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of keys and values that one token keeps over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
