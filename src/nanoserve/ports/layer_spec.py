"""One layer of a model as plain numbers: a mixer, which lets tokens read one another, and a feed."""

from __future__ import annotations

from typing import Literal

import attrs

Activation = Literal["silu", "gelu", "gelu_tanh"]


@attrs.frozen(kw_only=True)
class Llama3RopeScaling:
    """Llama 3.1's frequency-dependent stretching of the rotary wavelengths (Grattafiori et al. 2024)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@attrs.frozen(kw_only=True)
class LinearRopeScaling:
    """Every wavelength stretched by one factor (Chen et al. 2023)."""

    factor: float


@attrs.frozen(kw_only=True)
class YarnRopeScaling:
    """YaRN (Peng et al. 2023): long wavelengths stretched, short ones kept, a ramp between them.

    Attributes:
        beta_fast, beta_slow: turns within the original context at which the ramp begins and ends.
        truncate: whether the ramp's ends are rounded to whole dimensions.
        attention_factor: what cosines and sines are multiplied with.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@attrs.frozen(kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): each pair's wavelength stretched by a factor of its own.

    A sequence that is longer than the original context uses other factors for all its positions. An engine uses one set, chosen
    by its longest possible sequence, because sequences share cached keys.

    Attributes:
        short_factors, long_factors: one for each pair.
        attention_factor: what cosines and sines are multiplied with.
        is_long: whether the long factors count.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position: int
    attention_factor: float
    is_long: bool = False


RopeScaling = Llama3RopeScaling | LinearRopeScaling | YarnRopeScaling | LongRopeScaling


@attrs.frozen(kw_only=True, cache_hash=True)
class RopeSpec:
    """Rotary position embedding: base `theta`, optionally rescaled.

    Attributes:
        size: how many of a head's first elements are rotated; None for all of them, 0 if positions are not encoded.
        interleaved: whether a checkpoint pairs neighbours (0, 1), (2, 3) ... and not element i with i + size / 2.
    """

    theta: float = 10_000.0
    scaling: RopeScaling | None = None
    size: int | None = None
    interleaved: bool = False


Rotation = tuple[RopeSpec, int]
"""A rotary embedding, and the size of the vectors that it rotates wholly or in part."""


@attrs.frozen(kw_only=True)
class AttentionSpec:
    """Grouped-query attention.

    Attributes:
        window: the sliding window in tokens; None for full attention.
        scale: what scores are multiplied with; None for head_dim ** -0.5.
        qk_norm: norms q and k before the rotation, each head or the whole vector.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap).
        sinks: whether each head has a learned score that takes part in the softmax and has no value.
        gated: whether the result is multiplied by the sigmoid of a gate that is projected beside q.
        clip: the bound of the elements of q, k and v, applied after the norm; None for none.
        kept: what keys and values are kept in: 8-bit floats (e4m3), or None for the numbers that the model computes with.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec = RopeSpec()
    window: int | None = None
    scale: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["head", "vector"] | None = None
    soft_cap: float | None = None
    sinks: bool = False
    gated: bool = False
    clip: float | None = None
    kept: Literal["fp8"] | None = None

    @property
    def rotation(self) -> Rotation:
        """The rotation of queries and keys, and the number of elements that turn."""
        return self.rope, self.head_dim

    @property
    def cache_elements(self) -> int:
        """Cached numbers of one token: its keys and values."""
        return 2 * self.num_kv_heads * self.head_dim


@attrs.frozen(kw_only=True)
class BidirectionalSpec:
    """Multi-head attention of an encoder: a token reads later tokens as well as earlier ones, and nothing is cached.

    Attributes:
        rope: of size 0 if positions are not encoded here.
        window: a token reads those that are less than this many positions away; None for all of them.
    """

    num_heads: int
    head_dim: int
    rope: RopeSpec = RopeSpec(size=0)
    window: int | None = None
    bias: bool = True

    @property
    def rotation(self) -> Rotation:
        """The rotation of queries and keys, and the number of elements that turn."""
        return self.rope, self.head_dim

    @property
    def cache_elements(self) -> int:
        """Cached numbers of one token: none."""
        return 0


@attrs.frozen(kw_only=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are computed from one vector per token.

    Attributes:
        latent_dim: of the vector that is kept; `rope_dim` more elements, one rotated key for all heads, lie beside it.
        query_dim: of the vector that queries are made of; None if they are projected at once.
        nope_dim, value_dim: of one head's key without position, and of its value.
        scale: what scores are multiplied with.
        holders: ranks over which the entries of a row are dealt out, token by token; each has all with 1.
    """

    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    scale: float
    rope: RopeSpec
    query_dim: int | None = None
    bias: bool = False
    holders: int = 1

    @property
    def rotation(self) -> Rotation:
        """The rotation of queries and keys, and the number of elements that turn."""
        return self.rope, self.rope_dim

    @property
    def cache_elements(self) -> int:
        """Cached numbers of one token, its latent vector and its rotated key; a rank's part of them on average."""
        return (self.latent_dim + self.rope_dim) // self.holders


@attrs.frozen(kw_only=True)
class DeltaSpec:
    """A gated delta net (Yang et al. 2024): linear attention over a recurrent state, after a short convolution.

    Attributes:
        taps: tokens that the convolution sees, the newest included.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """Elements that pass through the convolution: q, k and v of all heads."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def cache_elements(self) -> int:
        """Cached numbers of one row: its state, and the last inputs of its convolution."""
        state = self.num_value_heads * self.key_dim * self.value_dim
        return state + self.channels * self.taps


@attrs.frozen(kw_only=True)
class DenseSpec:
    """down(activation(gate(x)) * up(x)), `size` elements wide; where it is not `gated` down(activation(up(x)))."""

    size: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True


@attrs.frozen(kw_only=True)
class RouterSpec:
    """How a token chooses its experts.

    Attributes:
        score: of the logits: softmax or sigmoid over all experts, or the softmax over the chosen logits alone.
        bias: whether the logits have a bias.
        correction: whether a learned bias is added to scores for the choice, though not for the weights.
        groups, top_groups: experts lie in so many groups, of which the best are open.
        group_score: a group's score: its best expert's, or the sum of its best two.
        normalized: whether the chosen weights are divided by their sum plus `sum_eps`.
        scale: what the weights are multiplied with in the end.
        exact: whether the reference computes logits in float32; others round them to the weights' dtype.
    """

    score: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    normalized: bool = True
    sum_eps: float = 0.0
    scale: float = 1.0
    exact: bool = False


@attrs.frozen(kw_only=True)
class ExpertsSpec:
    """A mixture of experts (Shazeer et al. 2017): each token's feed is a weighted sum of `top` of `count` small ones.

    Attributes:
        size: of one expert.
        held: the experts that a rank has, where whole ones are divided over ranks; None for all of them.
        shared_size: of the expert that every token passes through; 0 if there is none.
        shared_gate: whether that one is multiplied by the sigmoid of a projection to one number.
        clamp: gpt-oss's gate: (min(gate, clamp) * sigmoid(1.702 gate)) * (clamped up + 1); None for silu(gate) * up.
        bias: whether experts have biases.
        names: how checkpoints name them: gate_proj, up_proj and down_proj of each expert, or w1, w3 and w2,
            or those of all experts in one stack.
    """

    count: int
    top: int
    size: int
    router: RouterSpec = RouterSpec()
    held: range | None = None
    shared_size: int = 0
    shared_gate: bool = False
    clamp: float | None = None
    bias: bool = False
    names: Literal["proj", "w", "stacked"] = "proj"


Mixer = AttentionSpec | BidirectionalSpec | LatentSpec | DeltaSpec
Feed = DenseSpec | ExpertsSpec


@attrs.frozen
class LayerSpec:
    """A layer: its mixer, then its feed."""

    mixer: Mixer
    feed: Feed
