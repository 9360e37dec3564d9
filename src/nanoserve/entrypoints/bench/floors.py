"""The least time a load can take: bytes that must be read, and operations that must be computed, at the device's best.

Every decode step reads all weights once, and the keys and values of every row's visible tokens. Prompts are limited by
the operations of their products and attention. What writes, samples or waits is not counted, so nothing reaches 100%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings
from nanoserve.entrypoints.compose.config import BenchSettings
from nanoserve.ports.model_spec import CacheGroup, ModelSpec

TERA = 1e12


@attrs.frozen(kw_only=True)
class LoadFloor:
    """What bounds a load.

    Attributes:
        decode_bytes: read by all decode steps, at the least number of steps.
        decode_steps: that number.
        prefill_flops: operations of all prompts.
        seconds: the least time, as far as the ceilings are known.
    """

    decode_bytes: float
    decode_steps: int
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
    decode_bytes = float(size * (steps * weight_elements(spec) + kv))
    flops = sum(prefill_flops(spec, each) for each in lengths)
    prefill_seconds = size * weight_elements(spec) / ceilings.bandwidth
    if ceilings.compute is not None:
        prefill_seconds = max(prefill_seconds, flops / ceilings.compute)
    seconds = decode_bytes / ceilings.bandwidth + prefill_seconds
    return LoadFloor(decode_bytes=decode_bytes, decode_steps=steps, prefill_flops=flops, seconds=seconds)


def decode_step_bytes(parts: BenchParts, contexts: Sequence[int]) -> int:
    """Bytes that one decode step reads for rows with so many tokens: the weights, and each row's keys and values."""
    kv = sum(_kv_read(parts.spec, tokens, tokens) for tokens in contexts)
    return parts.element_bytes * (weight_elements(parts.spec) + kv)


def weight_elements(spec: ModelSpec) -> int:
    """Numbers of the weights that one decode step reads: every layer and the head, but only rows of the embedding."""
    return spec.num_layers * _layer_elements(spec) + spec.hidden_size * (spec.vocab_size + 1)


def prefill_flops(spec: ModelSpec, length: int) -> float:
    """Operations of one prompt: two per weight and token, causal attention, and the head for the last token."""
    weights = length * spec.num_layers * _layer_elements(spec) + spec.hidden_size * spec.vocab_size
    pairs = sum(len(group.layers) * _visible(group, 1, length) for group in spec.cache_groups)
    return 2.0 * weights + 4.0 * spec.num_heads * spec.head_dim * pairs


def _layer_elements(spec: ModelSpec) -> int:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = spec.hidden_size * (2 * queries + 2 * keys)
    return attention + 3 * spec.hidden_size * spec.intermediate_size + 2 * spec.hidden_size


def _kv_read(spec: ModelSpec, first: int, last: int) -> int:
    """Numbers of the keys and values that a row's decode steps read at context lengths `first` to `last`."""
    per_token = 2 * spec.num_kv_heads * spec.head_dim
    return sum(per_token * len(group.layers) * _visible(group, first, last) for group in spec.cache_groups)


def _visible(group: CacheGroup, first: int, last: int) -> int:
    """The sum of the tokens that are visible at context lengths `first` to `last`."""
    full = last if group.window is None else min(max(group.window, first - 1), last)
    rising = (first + full) * (full - first + 1) // 2
    return rising + (last - full) * (group.window or 0)
