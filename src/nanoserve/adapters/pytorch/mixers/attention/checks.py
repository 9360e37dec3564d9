"""The kernels of attention, and a model's inputs of their cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nanoserve.adapters.pytorch.kernel_checks import (
    ROWS,
    Bench,
    Check,
    drafting,
    fastest,
    invariant,
    of_each,
    widths,
    with_each,
)
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.kernels.paged_attention import cases as paged_attention
from nanoserve.kernels.pointwise import cases as pointwise
from nanoserve.kernels.rope_and_cache import cases as rope_and_cache
from nanoserve.kernels.testing import Comparison, Inputs
from nanoserve.kernels.testing_attention import Heads
from nanoserve.ports.layer_spec import AttentionSpec


def _heads(bench: Bench) -> list[Heads]:
    tables = bench.rotations()
    return [
        Heads(
            *(each.num_heads, each.num_kv_heads, each.head_dim, bench.block_size),
            *(each.window, each.qk_norm == "head", bench.spec.norm.eps, tables[each.rotation]),
            *(each.scale, each.soft_cap, each.sinks, bench.model.norm.weight.dtype),
            narrow=each.kept is not None,
        )
        for each in bench.mixers(AttentionSpec)
    ]


def _one_kind(bench: Bench) -> list[Heads]:
    """Heads for kernels to which a window is nothing."""
    return list({each.narrow: each._replace(window=None) for each in _heads(bench)}.values())


def _vectors(bench: Bench) -> list[dict[str, Any]]:
    """The arguments for whole queries, keys and values, where anything does."""
    parts = (part for parts in bench.model.kinds() for part in parts if isinstance(part, Attention))
    return [vectors for part in parts if (vectors := part.vectors) is not None]


def _check_vectors(inputs: Inputs, vectors: dict[str, Any]) -> Iterator[Comparison]:
    """Queries, keys and values of a few tokens."""
    norms = vectors["q_norm"], vectors["k_norm"]
    how = {"eps": vectors["eps"], "clip": vectors["clip"]}
    return pointwise.check_norm_qkv(inputs, ROWS[0], vectors["sizes"], norms, **how)


def _gates(bench: Bench) -> list[tuple[int, int]]:
    """The tokens and the widths of gated attention."""
    gated = (each for each in bench.mixers(AttentionSpec) if each.gated)
    return list(dict.fromkeys((ROWS[0], each.num_heads * each.head_dim) for each in gated))


def _drafted(bench: Bench) -> list[tuple[Any, ...]]:
    return [(heads, widths(bench)) for heads in _heads(bench)]


CHECKS: Final[Sequence[Check]] = (
    Check("norm_qkv_into", of_each(_check_vectors, _vectors)),
    Check("rope_and_cache", of_each(rope_and_cache.check_rope_and_cache, _one_kind)),
    Check("prefill_attention", of_each(paged_attention.check_prefill_attention, _heads)),
    Check("decode_attention", of_each(paged_attention.check_decode_attention, _heads), fastest),
    Check(
        "decode_attention, drafts",
        with_each(paged_attention.check_drafted_attention, _drafted),
        lambda bench: drafting(bench) and fastest(bench),
    ),
    Check(
        "rope_and_cache, newest", of_each(rope_and_cache.check_rope_and_cache_newest, _one_kind), invariant
    ),
    Check(
        "prefill_attention, newest",
        of_each(paged_attention.check_prefill_attention_newest, _heads),
        invariant,
    ),
    Check("sigmoid_mul_into", with_each(pointwise.check_sigmoid_mul, _gates)),
)
