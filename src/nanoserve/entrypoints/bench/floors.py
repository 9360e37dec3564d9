"""The least time a load can take: bytes that must be read, and operations that must be computed, at the device's best.

Every decode step reads all weights once, and the keys and values of every row's visible tokens. Of a mixture of experts it reads
those that its rows have chosen, as many as are expected where all are chosen equally often. Prompts are limited by
the operations of their products and attention. What writes, samples or waits is not counted, so nothing reaches 100%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings
from nanoserve.entrypoints.compose.config import BenchSettings
from nanoserve.ports.layer_spec import (
    AttentionSpec,
    DeltaSpec,
    DenseSpec,
    ExpertsSpec,
    Feed,
    LatentSpec,
    Mixer,
)
from nanoserve.ports.model_spec import CacheGroup, ModelSpec, Recurrent, Stored

TERA = 1e12
KEPT_BYTES: Final[Mapping[Stored, float]] = {"fp8": 1 + 4 / 128, "mxfp4": 17 / 32}
"""Bytes of one number and its share of a scale, by the form in which weights are kept."""


@attrs.frozen(kw_only=True)
class LoadFloor:
    """The bounds of a load.

    Attributes:
        decode_bytes: read by all decode steps, at the least number of steps.
        decode_steps: that number.
        decode_rows: sequences in each of them, on average.
        prefill_flops: operations of all prompts.
        seconds: the least time, as far as the ceilings are known.
    """

    decode_bytes: float
    decode_steps: int
    decode_rows: float
    prefill_flops: float
    seconds: float


def choose_ceilings(settings: BenchSettings, parts: BenchParts) -> Ceilings | None:
    """What the user says that the device can do, else what is measured; None where neither says how fast memory is."""
    given = [None if each is None else each * TERA for each in (settings.bandwidth, settings.compute)]
    measured = parts.measure_ceilings() if None in given else None
    if measured is not None:
        given = [given[0] or measured.bandwidth, given[1] or measured.compute]
    bandwidth, compute = given
    return None if bandwidth is None else Ceilings(bandwidth, compute)


def floor_of(load: BenchLoad, parts: BenchParts, ceilings: Ceilings) -> LoadFloor:
    """The floor of a load on an engine that holds `max_num_seqs` sequences at once."""
    spec, size = parts.spec, parts.element_bytes
    lengths = [len(prompt) for prompt in load.prompts]
    decoded = [length - 1 for length in load.output_lengths]
    steps = max([*decoded, math.ceil(sum(decoded) / parts.facts.max_num_seqs)])
    # the first decode step of a row sees the prompt and the token that the prompt gave
    kv = sum(_kv_read(spec, prompt + 1, prompt + each) for prompt, each in zip(lengths, decoded, strict=True))
    rows = sum(decoded) / steps if steps else 0
    states = sum(decoded) * _state_bytes(spec)
    decode_bytes = steps * _weight_bytes(parts, rows) + float(size * kv + states)
    flops = sum(prefill_flops(spec, each) for each in lengths)
    prefill_seconds = _weight_bytes(parts, sum(lengths)) / ceilings.bandwidth
    if ceilings.compute is not None:
        prefill_seconds = max(prefill_seconds, flops / ceilings.compute)
    seconds = decode_bytes / ceilings.bandwidth + prefill_seconds
    return LoadFloor(
        decode_bytes=decode_bytes, decode_steps=steps, decode_rows=rows, prefill_flops=flops, seconds=seconds
    )


def decode_step_bytes(parts: BenchParts, contexts: Sequence[int]) -> int:
    """Bytes that one decode step moves for rows with so many tokens: the weights, and each row's keys and values, and states."""
    kv = sum(_kv_read(parts.spec, tokens, tokens) for tokens in contexts)
    read = _weight_bytes(parts, len(contexts)) + parts.element_bytes * kv
    return round(read) + len(contexts) * _state_bytes(parts.spec)


def _weight_bytes(parts: BenchParts, rows: float) -> float:
    """Bytes of the weights that a step of that many rows reads, as they are kept."""
    size, spec = parts.element_bytes, parts.spec
    plain = float(size * weight_elements(spec, rows))
    if parts.stored is None:
        return plain
    return plain - (size - KEPT_BYTES[parts.stored]) * _kept_elements(spec, rows, parts.stored)


def _kept_elements(spec: ModelSpec, rows: float, stored: Stored) -> int:
    """Numbers of the weights that are kept as stored and that so many rows read."""
    hidden, count = spec.hidden_size, 0
    for layer in spec.layers:
        if isinstance(layer.feed, ExpertsSpec):
            count += _chosen_elements(layer.feed, hidden, rows)
        if stored == "fp8":
            feed, mixer = layer.feed, layer.mixer
            count += 3 * hidden * (feed.size if isinstance(feed, DenseSpec) else feed.shared_size)
            count += 0 if isinstance(mixer, DeltaSpec) else _mixer_elements(mixer, hidden)
            if isinstance(mixer, LatentSpec):
                count -= mixer.num_heads * (mixer.nope_dim + mixer.value_dim) * mixer.latent_dim
    return count


def weight_elements(spec: ModelSpec, rows: float = 1) -> int:
    """Numbers of the weights that a decode step of so many rows reads: every layer and the head, but only rows of the embedding."""
    return _layer_elements(spec, rows) + spec.hidden_size * (spec.vocab_size + 1)


def expected_experts(spec: ModelSpec, rows: float) -> str | None:
    """How many experts a decode step of so many rows reads where all are chosen equally often, for a reader; None where there are none."""
    feeds = [layer.feed for layer in spec.layers if isinstance(layer.feed, ExpertsSpec)]
    if not feeds:
        return None
    return (
        f"experts: {_distinct(feeds[0], rows):.1f} of {feeds[0].count} are expected in each layer and decode step of {rows:.3g} rows "
        "(not measured)"
    )


def prefill_flops(spec: ModelSpec, length: int) -> float:
    """Operations of one prompt: two per weight and token, causal attention, states, and the head for the last token."""
    weights = length * _layer_elements(spec, 1) + spec.hidden_size * spec.vocab_size
    pairs = sum(
        _attended(spec.layers[layer].mixer) * _visible(group, 1, length)
        for group in spec.cache_groups
        for layer in group.layers
    )
    # Each token decays the state, reads it with its key, changes it, and reads it with its query.
    states = 4 * length * sum(group.elements * len(group.layers) for group in _recurrent(spec))
    return 2.0 * weights + 2.0 * pairs + states


def _layer_elements(spec: ModelSpec, rows: float) -> int:
    """Numbers of all layers' weights that so many tokens pass through."""
    hidden = spec.hidden_size
    return sum(
        _mixer_elements(each.mixer, hidden) + _feed_elements(each.feed, hidden, rows) for each in spec.layers
    )


def _mixer_elements(mixer: Mixer, hidden: int) -> int:
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


def _feed_elements(feed: Feed, hidden: int, rows: float) -> int:
    if isinstance(feed, DenseSpec):
        return hidden * (3 * feed.size + 1)
    always = 3 * feed.shared_size + feed.count + feed.shared_gate + 1
    return hidden * always + _chosen_elements(feed, hidden, rows)


def _chosen_elements(feed: ExpertsSpec, hidden: int, rows: float) -> int:
    return round(_distinct(feed, rows) * 3 * feed.size * hidden)


def _distinct(feed: ExpertsSpec, rows: float) -> float:
    """Experts that so many rows are expected to choose, where all are chosen equally often."""
    return (1 - math.pow(1 - feed.top / feed.count, rows)) * feed.count


def _attended(mixer: Mixer) -> int:
    """Products of one token with one that it sees: scores, and the sum of values (each head's own, where there are latents)."""
    if isinstance(mixer, LatentSpec):
        return mixer.num_heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
    if isinstance(mixer, DeltaSpec):
        return 0
    assert isinstance(mixer, AttentionSpec)
    return 2 * mixer.num_heads * mixer.head_dim


def _kv_read(spec: ModelSpec, first: int, last: int) -> int:
    """Numbers of the keys and values that a row's decode steps read at context lengths `first` to `last`."""
    groups = spec.cache_groups
    return sum(group.elements * len(group.layers) * _visible(group, first, last) for group in groups)


def _recurrent(spec: ModelSpec) -> list[CacheGroup]:
    return [group for group in spec.cache_groups if isinstance(group.kind, Recurrent)]


def _state_bytes(spec: ModelSpec) -> int:
    """Bytes of states that one token of one row reads and writes."""
    return sum(2 * group.page_bytes(block_size=1, element_bytes=0) for group in _recurrent(spec))


def _visible(group: CacheGroup, first: int, last: int) -> int:
    """The sum of the tokens that are visible at context lengths `first` to `last`; a state is no token."""
    if isinstance(group.kind, Recurrent):
        return 0
    full = last if group.window is None else min(max(group.window, first - 1), last)
    rising = (first + full) * (full - first + 1) // 2
    return rising + (last - full) * (group.window or 0)
