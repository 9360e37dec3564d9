"""The least time a load can take: bytes that must be read, and operations that must be computed, at the device's best.

Every decode step reads all weights once, and the keys and values of every row's visible tokens. Prompts are limited by
the operations of their products and attention. What writes, samples or waits is not counted, so nothing reaches 100%.
"""

from __future__ import annotations

import math

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
    bandwidth, compute = (
        None if each is None else each * TERA for each in (settings.bandwidth, settings.compute)
    )
    if bandwidth is None or compute is None:
        measured = parts.measure_ceilings()
        if measured is not None:
            bandwidth, compute = bandwidth or measured.bandwidth, compute or measured.compute
    return None if bandwidth is None else Ceilings(bandwidth, compute)


def floor_of(load: BenchLoad, parts: BenchParts, ceilings: Ceilings) -> LoadFloor:
    """The floor of a load on an engine that holds `max_num_seqs` sequences at once."""
    spec, size = parts.spec, parts.element_bytes
    wanted = [length - 1 for length in load.output_lengths]
    steps = max([*wanted, math.ceil(sum(wanted) / parts.facts.max_num_seqs)])
    kv = sum(
        _visible_elements(spec, len(prompt), length)
        for prompt, length in zip(load.prompts, wanted, strict=True)
    )
    decode_bytes = float(size * (steps * weight_elements(spec) + kv))
    flops = sum(prefill_flops(spec, len(prompt)) for prompt in load.prompts)
    prefill_seconds = size * weight_elements(spec) / ceilings.bandwidth
    if ceilings.compute is not None:
        prefill_seconds = max(prefill_seconds, flops / ceilings.compute)
    seconds = decode_bytes / ceilings.bandwidth + prefill_seconds
    return LoadFloor(decode_bytes=decode_bytes, decode_steps=steps, prefill_flops=flops, seconds=seconds)


def decode_step_bytes(parts: BenchParts, contexts: list[int]) -> int:
    """Bytes that one decode step reads for rows with so many tokens: the weights, and each row's keys and values."""
    kv = sum(
        _elements_per_token(parts.spec, group) * _seen(group, tokens)
        for group in parts.spec.cache_groups
        for tokens in contexts
    )
    return parts.element_bytes * (weight_elements(parts.spec) + kv)


def weight_elements(spec: ModelSpec) -> int:
    """Numbers of the weights that one decode step reads: every layer and the head, but only rows of the embedding."""
    return spec.num_layers * _layer_elements(spec) + spec.hidden_size * (spec.vocab_size + 1)


def prefill_flops(spec: ModelSpec, length: int) -> float:
    """Operations of one prompt: two per weight and token, causal attention, and the head for the last token."""
    products = (
        2.0 * length * spec.num_layers * _layer_elements(spec) + 2.0 * spec.hidden_size * spec.vocab_size
    )
    per_pair = 4.0 * spec.num_heads * spec.head_dim
    attention = sum(per_pair * len(group.layers) * _sum_seen(group, 1, length) for group in spec.cache_groups)
    return products + attention


def _layer_elements(spec: ModelSpec) -> int:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = spec.hidden_size * (2 * queries + 2 * keys)
    return attention + 3 * spec.hidden_size * spec.intermediate_size + 2 * spec.hidden_size


def _elements_per_token(spec: ModelSpec, group: CacheGroup) -> int:
    return 2 * len(group.layers) * spec.num_kv_heads * spec.head_dim


def _visible_elements(spec: ModelSpec, prompt: int, steps: int) -> int:
    """Keys and values that the decode steps of one row read: the first sees the prompt and its own token."""
    return sum(
        _elements_per_token(spec, group) * _sum_seen(group, prompt + 1, prompt + steps)
        for group in spec.cache_groups
    )


def _seen(group: CacheGroup, tokens: int) -> int:
    return tokens if group.window is None else min(tokens, group.window)


def _sum_seen(group: CacheGroup, first: int, last: int) -> int:
    """The sum of what is seen at context lengths `first` to `last`."""
    full = last if group.window is None else min(max(group.window, first - 1), last)
    rising = (first + full) * (full - first + 1) // 2
    return rising + (last - full) * (group.window or 0)
