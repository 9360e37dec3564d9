"""The cost of computing with a model, counted from its `ModelSpec` alone: weights that are read, and operations.

A step reads those experts of a mixture that its rows have chosen, as many as are expected where all are chosen equally often.
"""

from __future__ import annotations

import math

from nanoserve.ports.layer_spec import (
    AttentionSpec,
    DeltaSpec,
    DenseSpec,
    ExpertsSpec,
    Feed,
    LatentSpec,
    Mixer,
)
from nanoserve.ports.model_spec import CacheGroup, ModelSpec, Recurrent


def weight_elements(spec: ModelSpec, rows: float = 1) -> int:
    """Numbers of the weights that a decode step of this many rows reads: every layer and the head, but only rows of the embedding."""
    return _layer_elements(spec, rows) + spec.hidden_size * (spec.vocab_size + 1)


def prefill_flops(spec: ModelSpec, length: int) -> float:
    """Operations of one prompt: two per weight and token, causal attention, states, and the head for the last token."""
    weights = length * _layer_elements(spec, 1) + spec.hidden_size * spec.vocab_size
    pairs, states = 0, 0
    for group in spec.cache_groups:
        pairs += sum(_attended(spec.layers[layer].mixer) for layer in group.layers) * visible(
            group, 1, length
        )
        if isinstance(group.kind, Recurrent):
            # Each token decays the state, reads it with its key, changes it, and reads it with its query.
            states += 4 * length * group.elements * len(group.layers)
    return 2.0 * weights + 2.0 * pairs + states


def visible(group: CacheGroup, first: int, last: int) -> int:
    """The sum of the tokens that are visible at context lengths `first` to `last`; a state is no token."""
    if isinstance(group.kind, Recurrent):
        return 0
    full = last if group.window is None else min(max(group.window, first - 1), last)
    rising = (first + full) * (full - first + 1) // 2
    return rising + (last - full) * (group.window or 0)


def mixer_elements(mixer: Mixer, hidden: int) -> int:
    """Numbers of a mixer's weights, with those of the norm before it."""
    if isinstance(mixer, LatentSpec):
        queries = mixer.num_heads * (mixer.nope_dim + mixer.rope_dim)
        first = mixer.query_dim or queries
        inner = (mixer.query_dim or 0) * (queries + 1) + mixer.latent_dim
        inner += mixer.num_heads * (mixer.nope_dim + mixer.value_dim) * mixer.latent_dim
        return hidden * (first + mixer.cache_elements + mixer.num_heads * mixer.value_dim + 1) + inner
    if isinstance(mixer, DeltaSpec):
        inner = mixer.num_value_heads * mixer.value_dim
        projected = mixer.channels + inner + 2 * mixer.num_value_heads
        return hidden * (projected + inner + 1) + mixer.channels * mixer.taps
    assert isinstance(mixer, AttentionSpec)
    return hidden * ((2 + mixer.gated) * mixer.num_heads * mixer.head_dim + mixer.cache_elements + 1)


def feed_elements(feed: Feed, hidden: int, rows: float) -> int:
    """Numbers of the weights of a feed, and of the norm before it, that so many rows pass through."""
    if isinstance(feed, DenseSpec):
        return hidden * ((2 + feed.gated) * feed.size + 1)
    always = 3 * feed.shared_size + feed.count + feed.shared_gate + 1
    return hidden * always + expert_elements(feed, hidden, rows)


def expert_elements(feed: ExpertsSpec, hidden: int, rows: float) -> int:
    """Numbers of the weights of the experts that so many rows choose."""
    return round(distinct_experts(feed, rows) * 3 * feed.size * hidden)


def distinct_experts(feed: ExpertsSpec, rows: float) -> float:
    """Experts that so many rows are expected to choose, where all are chosen equally often."""
    return (1 - math.pow(1 - feed.top / feed.count, rows)) * feed.count


def _layer_elements(spec: ModelSpec, rows: float) -> int:
    """Numbers of all layers' weights that so many tokens pass through."""
    hidden = spec.hidden_size
    return sum(
        mixer_elements(each.mixer, hidden) + feed_elements(each.feed, hidden, rows) for each in spec.layers
    )


def _attended(mixer: Mixer) -> int:
    """Products of one token with one that it sees: scores, and the sum of values (each head's own, where there are latents)."""
    if isinstance(mixer, LatentSpec):
        return mixer.num_heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
    if isinstance(mixer, DeltaSpec):
        return 0
    assert isinstance(mixer, AttentionSpec)
    return 2 * mixer.num_heads * mixer.head_dim
