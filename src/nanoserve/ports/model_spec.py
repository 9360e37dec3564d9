"""A model's shape as plain numbers, independent of the format it was read from and of the code that runs it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs

from nanoserve.ports.layer_spec import (
    AttentionSpec,
    BidirectionalSpec,
    DeltaSpec,
    LatentSpec,
    LayerSpec,
    LongRopeScaling,
    Mixer,
    Rotation,
)


@attrs.frozen
class Full:
    """A token reads every earlier token's keys and values, its own included."""

    name: ClassVar = "full"


@attrs.frozen
class Window:
    """A token at position p reads the keys and values of positions p - tokens + 1 to p."""

    name: ClassVar = "window"
    tokens: int


@attrs.frozen
class Latent:
    """A token reads every earlier token's latent vector, from which the keys and values of all heads are computed (MLA)."""

    name: ClassVar = "latent"


@attrs.frozen
class Recurrent:
    """A token reads one state of all earlier tokens and overwrites it. So a state can be reused only at a length with a kept copy, a snapshot.

    Attributes:
        prompt_interval: tokens from one snapshot to the next in a long prompt, and
        decode_interval: while decoding; both are rounded up to whole blocks.
        element_bytes: of one number; states are kept in float32 whatever the weights are.
    """

    name: ClassVar = "state"
    prompt_interval: int = 2048
    decode_interval: int = 256
    element_bytes: int = 4


@attrs.frozen
class Uncached:
    """A token reads all tokens of its sequence, or those less than `window` positions away; nothing is cached.

    So one step computes a whole sequence.
    """

    name: ClassVar = "none"
    window: int | None = None


CacheKind = Full | Window | Latent | Recurrent | Uncached

Stored = Literal["fp8", "mxfp4", "int4", "int8"]
"""The form of a checkpoint's quantized weights: 8-bit floats with scales, experts in MXFP4, or integers in groups."""


@attrs.frozen
class Packing:
    """How a checkpoint packs integers, as far as shapes of tensors do not show it.

    Attributes:
        library: whose layout it is; GPTQ's second format stores zero points as they are, its first less one.
        bits: of an integer.
        group: neighbours of a row that share a scale; None for a row.
        needs: tensors that a matrix has besides those that all have: zero points, or the groups of its columns.
    """

    library: Literal["awq", "gptq", "gptq_v2", "compressed-tensors"]
    bits: int
    group: int | None
    needs: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CacheGroup:
    """Layers that share one block table, because they cache the same tokens for the same time.

    Attributes:
        kind: what its layers read, from which `domain/kv/laws.py` derives what may go and what can be reused.
        elements: numbers that one layer keeps of one token, or in a recurrent group of one row's whole past.
        narrow_bytes: of one of them, where that is not what the model computes with.
    """

    layers: tuple[int, ...]
    kind: CacheKind = Full()
    elements: int = 0
    narrow_bytes: int | None = None

    @property
    def window(self) -> int | None:
        """The sliding window in tokens; None if the kind has none."""
        return self.kind.tokens if isinstance(self.kind, Window) else None

    def page_bytes(self, block_size: int, element_bytes: int) -> int:
        """Bytes of one block, or of one recurrent state, over all its layers."""
        if isinstance(self.kind, Recurrent):
            return len(self.layers) * self.elements * self.kind.element_bytes
        return len(self.layers) * self.elements * block_size * (self.narrow_bytes or element_bytes)


@attrs.frozen(kw_only=True)
class PoolNeed:
    """The number of pages (blocks or states) that the pool of one cache group can use.

    Attributes:
        least: with fewer, not even one sequence of the longest length fits.
        per_row, fixed: more than `fixed` and `per_row` for each running sequence are of no use.
        usual: what a sequence of usual length holds, where more pages always hold more text: such groups share what
            the others leave. None if the law bounds what a row can use.
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
class NormSpec:
    """An RMS norm, or a layer norm.

    Attributes:
        form: `rounded` RMS norms round to the weights' dtype before they multiply with the weight; `exact` ones after it;
            so do `zero_centered` ones, whose weights are stored less one. A `layer` norm takes the mean away, too.
        bias: whether a layer norm adds one.
    """

    eps: float
    form: Literal["rounded", "exact", "zero_centered", "layer"] = "rounded"
    bias: bool = False


@attrs.frozen(kw_only=True)
class EncoderSpec:
    """An encoder's vectors of tokens: normed sums of those of its ids, and of learned ones of positions and token types.

    Attributes:
        positions: rows of the table of positions; 0 if there is none.
        first_position: the row of the first token.
        token_types: rows of the table of types, if there are positions. The second text of a pair has type 1 where there are two.
        prefix: how a checkpoint calls the model beside its classifier.
    """

    positions: int = 0
    first_position: int = 0
    token_types: int = 0
    prefix: str = "bert"


@attrs.frozen(kw_only=True)
class PooledLayer:
    """A layer after the pooler: norm(activation(x W^T + b)), of a classifier or of sentence-transformers' Dense.

    Attributes:
        name: of its weight and bias in a checkpoint, and `norm` of its layer norm's, if it has one.
        size: numbers of its result.
        folder: where its checkpoint is within the model's folder; empty for the model's own.
    """

    name: str
    size: int
    bias: bool = True
    activation: Literal["none", "tanh", "gelu", "relu", "sigmoid"] = "none"
    norm: str | None = None
    folder: str = ""


@attrs.frozen(kw_only=True)
class DraftSpec:
    """A head: one layer that guesses tokens from hidden states of a model. EAGLE-3's (Li et al. 2025), or the model's own (MTP, DeepSeek-AI 2024).

    Attributes:
        layer: its layer, which keeps keys and values beside those of the model's layers.
        vocab_size: tokens that it can guess, chosen from the model's.
        taps: layers of the model whose inputs it reads, ascending; one past the last is the last layer's output.
        adds_normed: whether the layer adds to hidden states as they are normed, and not as they are.
        own: whether it is the first of the model's `further_layers`, which reads states that the model's last norm has normed.
    """

    layer: LayerSpec
    hidden_size: int
    vocab_size: int
    norm: NormSpec
    taps: tuple[int, ...]
    adds_normed: bool = False
    own: bool = False


@attrs.frozen(kw_only=True)
class ModelSpec:
    """The numbers that define a transformer, decoder-only or encoder-only.

    Attributes:
        architecture: the key of the model page that runs it, such as `llama` or `qwen3`.
        max_position: the longest context, in tokens, that the model was made for.
        embedding_scale: what embeddings are multiplied with.
        stream_unit: the residual stream is kept divided by this, so that what layers add need not be multiplied by it
            (Granite); `embedding_scale` and the epsilon of `norm` are those of the divided stream.
        logit_divisor: what logits are divided by.
        logit_soft_cap: logits x then become cap * tanh(x / cap).
        further_layers: of the checkpoint, behind `layers`; they predict tokens beyond the next, and the first may draft.
        exceeds_float16: whether its activations leave the range of float16.
        dtype: the name of the dtype its weights are stored in, such as `bfloat16`, except those that are quantized.
        stored: the form of these; `packing`, how integers are packed.
        eos_token_ids: the ids that end a sequence.
        pooled_layers: what pooled vectors pass through, in order; all tokens' states where each is classified.
        encoder: of an encoder.
        draft: a head that drafts for the model, or a whole model that does.
    """

    architecture: str
    hidden_size: int
    vocab_size: int
    max_position: int
    norm: NormSpec
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool
    embedding_scale: float | None = None
    stream_unit: float = 1.0
    logit_divisor: float = 1.0
    logit_soft_cap: float | None = None
    further_layers: int = 0
    exceeds_float16: bool = False
    dtype: str = "bfloat16"
    stored: Stored | None = None
    packing: Packing | None = None
    eos_token_ids: tuple[int, ...] = ()
    pooled_layers: tuple[PooledLayer, ...] = ()
    encoder: EncoderSpec | None = None
    draft: DraftSpec | ModelSpec | None = None

    @property
    def usual_length(self) -> int:
        """The longest context, in tokens, if none is asked for: within it no sequence depends on how long others may be."""
        longer = [rope.scaling for rope, _ in self.rotations if isinstance(rope.scaling, LongRopeScaling)]
        return min([self.max_position, *(scaling.original_max_position for scaling in longer)])

    def for_length(self, max_model_len: int) -> ModelSpec:
        """The model as it is computed where sequences may have so many tokens."""
        draft = self.draft.for_length(max_model_len) if isinstance(self.draft, ModelSpec) else self.draft
        layers = tuple(_for_length(layer, max_model_len) for layer in self.layers)
        return attrs.evolve(self, layers=layers, draft=draft)

    def keeping(self, kept: Literal["fp8"]) -> ModelSpec:
        """The model with keys and values kept so in all layers that read every earlier token; windows, latents and states stay."""
        layers = tuple(
            attrs.evolve(layer, mixer=attrs.evolve(layer.mixer, kept=kept))
            if isinstance(layer.mixer, AttentionSpec) and layer.mixer.window is None
            else layer
            for layer in self.layers
        )
        return attrs.evolve(self, layers=layers)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes that one token keeps over all layers, where numbers that are computed with have so many."""
        return sum(
            group.page_bytes(1, element_bytes)
            for group in self.cache_groups
            if not isinstance(group.kind, Recurrent)
        )

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def keeping_layers(self) -> tuple[LayerSpec, ...]:
        """The layers, and behind them those of what drafts."""
        match self.draft:
            case None:
                return self.layers
            case DraftSpec():
                return (*self.layers, self.draft.layer)
            case ModelSpec():
                return (*self.layers, *self.draft.layers)

    @functools.cached_property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The layers by what they keep of a sequence, and as how many heads, in order of first appearance."""
        groups: dict[tuple[CacheKind, int, int | None, int | None], list[int]] = {}
        for number, mixer in enumerate(each.mixer for each in self.keeping_layers):
            heads = mixer.num_kv_heads if isinstance(mixer, AttentionSpec) else None
            narrow = 1 if isinstance(mixer, AttentionSpec) and mixer.kept == "fp8" else None
            groups.setdefault((_kind(mixer), mixer.cache_elements, narrow, heads), []).append(number)
        return tuple(
            CacheGroup(layers=tuple(layers), kind=kind, elements=elements, narrow_bytes=narrow)
            for (kind, elements, narrow, _), layers in groups.items()
        )

    @property
    def complete_group(self) -> int | None:
        """The first cache group whose blocks hold all tokens of a sequence; None if none does."""
        groups = enumerate(self.cache_groups)
        return next((place for place, each in groups if isinstance(each.kind, Full | Latent)), None)

    @property
    def rotations(self) -> tuple[Rotation, ...]:
        """Each rotary embedding once."""
        mixers = [layer.mixer for layer in self.keeping_layers]
        return tuple(dict.fromkeys(each.rotation for each in mixers if not isinstance(each, DeltaSpec)))


def _for_length(layer: LayerSpec, max_model_len: int) -> LayerSpec:
    mixer = layer.mixer
    if not isinstance(mixer, AttentionSpec) or not isinstance(mixer.rope.scaling, LongRopeScaling):
        return layer
    scaling = attrs.evolve(
        mixer.rope.scaling, is_long=max_model_len > mixer.rope.scaling.original_max_position
    )
    return attrs.evolve(layer, mixer=attrs.evolve(mixer, rope=attrs.evolve(mixer.rope, scaling=scaling)))


def _kind(mixer: Mixer) -> CacheKind:
    match mixer:
        case AttentionSpec(window=None):
            return Full()
        case AttentionSpec(window=int(tokens)):
            return Window(tokens)
        case LatentSpec():
            return Latent()
        case BidirectionalSpec():
            return Uncached(mixer.window)
        case _:
            return Recurrent()
