"""The kernels of latent attention, and a model's inputs of their cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nanoserve.adapters.pytorch.kernel_checks import (
    ROWS,
    Bench,
    Check,
    drafting,
    fastest,
    of_each,
    widths,
    with_each,
)
from nanoserve.adapters.pytorch.mixers.latent.part import INNER_NORM
from nanoserve.kernels.latent_attention import cases as latent_attention
from nanoserve.kernels.rope_and_cache import cases as rope_and_cache
from nanoserve.kernels.testing import Comparison, Inputs
from nanoserve.kernels.testing_attention import LatentHeads
from nanoserve.ports.layer_spec import LatentSpec


def _heads(bench: Bench) -> list[LatentHeads]:
    tables = bench.rotations()
    return [
        LatentHeads(
            *(each.num_heads, each.latent_dim, each.rope_dim, each.nope_dim, each.value_dim),
            block_size=bench.block_size,
            eps=INNER_NORM.eps,
            rotations=tables[each.rotation],
        )
        for each in bench.mixers(LatentSpec)
    ]


def _check_products(inputs: Inputs, heads: LatentHeads) -> Iterator[Comparison]:
    """The products of each head with the weights around latent attention."""
    for tokens in ROWS:
        yield from latent_attention.check_head_linear(inputs, heads, tokens)


def _drafted(bench: Bench) -> list[tuple[Any, ...]]:
    return [(heads, widths(bench)) for heads in _heads(bench)]


CHECKS: Final[Sequence[Check]] = (
    Check("write_latents", of_each(rope_and_cache.check_write_latents, _heads)),
    Check("head_linear", of_each(_check_products, _heads)),
    Check("expanded_attention", of_each(latent_attention.check_expanded_attention, _heads), fastest),
    Check("latent_prefill", of_each(latent_attention.check_latent_prefill, _heads)),
    Check("latent_decode", of_each(latent_attention.check_latent_decode, _heads), fastest),
    Check(
        "latent_decode, drafts",
        with_each(latent_attention.check_drafted_latents, _drafted),
        lambda bench: drafting(bench) and fastest(bench),
    ),
)
