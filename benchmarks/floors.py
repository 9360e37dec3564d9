"""The least time a load can take: bytes that must be read, and operations that must be computed, at the device's best.

Every decode step reads all weights once, and the keys and values of every row's visible tokens. Prompts are limited by the
operations of their products and attention. What writes, samples or waits is not counted, so nothing reaches 100%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import torch

from benchmarks.ceilings import Ceilings
from nanoserve.entrypoints.bench.measurement import BenchLoad
from nanoserve.ports.layer_spec import DeltaSpec, DenseSpec, ExpertsSpec, LatentSpec
from nanoserve.ports.model_spec import ModelSpec, Recurrent, Stored
from nanoserve_cluster.entrypoints.simulate.model_cost import (
    distinct_experts,
    expert_elements,
    mixer_elements,
    prefill_flops,
    visible,
    weight_elements,
)

KEPT_BYTES: Final[Mapping[Stored, float]] = {
    "fp8": 1 + 4 / 128,
    "mxfp4": 17 / 32,
    "int4": 1 / 2 + 4 / 128,
    "int8": 1 + 4 / 128,
}
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


@attrs.frozen(kw_only=True)
class FloorModel:
    """A model on a device: its spec, the type of its numbers, and whether weights are kept as their checkpoint stores them."""

    spec: ModelSpec
    dtype: str
    keeps_stored: bool

    @property
    def element_bytes(self) -> int:
        """Bytes of one number of the weights and of the KV cache."""
        return int(getattr(torch, self.dtype).itemsize)

    def floor_of(self, load: BenchLoad, max_num_seqs: int, ceilings: Ceilings) -> LoadFloor:
        """The floor of a load on an engine that holds `max_num_seqs` sequences at once."""
        spec = self.spec
        lengths = [len(prompt) for prompt in load.prompts]
        decoded = [length - 1 for length in load.output_lengths]
        steps = max([*decoded, math.ceil(sum(decoded) / max_num_seqs)])
        # the first decode step of a row sees the prompt and the token that the prompt gave
        rows_read = zip(lengths, decoded, strict=True)
        kv = sum(_kv_read(spec, prompt + 1, prompt + each) for prompt, each in rows_read)
        rows = sum(decoded) / steps if steps else 0
        states = sum(decoded) * _state_bytes(spec)
        decode_bytes = steps * self.weight_bytes(rows) + float(self.element_bytes * kv + states)
        flops = sum(prefill_flops(spec, each) for each in lengths)
        prefill_seconds = self.weight_bytes(sum(lengths)) / ceilings.bandwidth
        if ceilings.compute is not None:
            prefill_seconds = max(prefill_seconds, flops / ceilings.compute)
        return LoadFloor(
            decode_bytes=decode_bytes,
            decode_steps=steps,
            decode_rows=rows,
            prefill_flops=flops,
            seconds=decode_bytes / ceilings.bandwidth + prefill_seconds,
        )

    def decode_step_bytes(self, contexts: Sequence[int]) -> int:
        """Bytes that one decode step moves for rows with so many tokens: the weights, and each row's keys and values, and states."""
        kv = sum(_kv_read(self.spec, tokens, tokens) for tokens in contexts)
        read = self.weight_bytes(len(contexts)) + self.element_bytes * kv
        return round(read) + len(contexts) * _state_bytes(self.spec)

    def weight_bytes(self, rows: float) -> float:
        """Bytes of the weights that a step of that many rows reads, as they are kept."""
        plain = float(self.element_bytes * weight_elements(self.spec, rows))
        if not self.keeps_stored or self.spec.stored is None:
            return plain
        kept = self.element_bytes - KEPT_BYTES[self.spec.stored]
        return plain - kept * _kept_elements(self.spec, rows, self.spec.stored)


def expected_experts(spec: ModelSpec, rows: float) -> str | None:
    """How many experts a decode step of so many rows reads where all are chosen equally often, for a reader; None where there are none."""
    feeds = [layer.feed for layer in spec.layers if isinstance(layer.feed, ExpertsSpec)]
    if not feeds:
        return None
    expected = f"{distinct_experts(feeds[0], rows):.1f} of {feeds[0].count}"
    return f"experts: {expected} are expected in each layer and decode step of {rows:.3g} rows (not measured)"


def _kept_elements(spec: ModelSpec, rows: float, stored: Stored) -> int:
    """Numbers of the weights that are kept as stored and that so many rows read."""
    hidden, count = spec.hidden_size, 0
    for layer in spec.layers:
        if isinstance(layer.feed, ExpertsSpec):
            count += expert_elements(layer.feed, hidden, rows)
        if stored != "mxfp4":
            feed, mixer = layer.feed, layer.mixer
            count += 3 * hidden * (feed.size if isinstance(feed, DenseSpec) else feed.shared_size)
            count += 0 if isinstance(mixer, DeltaSpec) else mixer_elements(mixer, hidden)
            if isinstance(mixer, LatentSpec):
                count -= mixer.num_heads * (mixer.nope_dim + mixer.value_dim) * mixer.latent_dim
    return count


def _kv_read(spec: ModelSpec, first: int, last: int) -> int:
    """Numbers of the keys and values that a row's decode steps read at context lengths `first` to `last`."""
    groups = spec.cache_groups
    return sum(group.elements * len(group.layers) * visible(group, first, last) for group in groups)


def _state_bytes(spec: ModelSpec) -> int:
    """Bytes of states that one token of one row reads and writes."""
    states = [group for group in spec.cache_groups if isinstance(group.kind, Recurrent)]
    return sum(2 * group.page_bytes(block_size=1, element_bytes=0) for group in states)
