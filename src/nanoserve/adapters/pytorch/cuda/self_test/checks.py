"""Every kernel that serving may launch, with cases in a model's dimensions and with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import torch

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
from nanoserve.adapters.pytorch.lora.layout import Layout, Site
from nanoserve.adapters.pytorch.mixers import KINDS
from nanoserve.kernels.copies import cases as copies
from nanoserve.kernels.draft_head import cases as draft_head
from nanoserve.kernels.experts import cases as experts
from nanoserve.kernels.forms import FP8, form_of
from nanoserve.kernels.linear import cases as linear
from nanoserve.kernels.linear.launch import slice_count, takes_fp8
from nanoserve.kernels.linear.low_rank import cases as low_rank
from nanoserve.kernels.logits import cases as logits
from nanoserve.kernels.ngrams import cases as ngrams
from nanoserve.kernels.pointwise import cases as pointwise
from nanoserve.kernels.rank_sums import cases as rank_sums
from nanoserve.kernels.sampling import cases as sampling
from nanoserve.kernels.testing import Comparison


def has_experts(bench: Bench) -> bool:
    """True if there are feeds that are mixtures of experts."""
    return bool(bench.model.mixtures())


def _check_choices(bench: Bench) -> Iterator[Comparison]:
    """Some tokens' choice from two slices, with a bias and a correction where the model has them."""
    for each in bench.model.mixtures():
        slices = bench.inputs.normal(2, ROWS[0], each.router.out_features, dtype=torch.float32)
        bias, correction = each.router.bias, each.correction
        yield from experts.check_choose_experts(bench.inputs, each.routing, slices, correction, bias=bias)


def _check_rows_of_experts(bench: Bench) -> Iterator[Comparison]:
    """One token, normed on the way, and a few that have been normed before."""
    weight, eps = bench.model.norm.weight, bench.model.norm.eps
    for each in bench.model.mixtures():
        for tokens, norm in ((1, weight), (3, None)):
            count, others = len(each.experts.down), each.experts.others
            chosen = experts.random_choice(bench.inputs, tokens, each.routing.slots, count, others=others)
            anew = tokens == 1 and bench.ranks > 1
            yield from experts.check_feed_rows(bench.inputs, each.experts, chosen, norm, eps, anew=anew)


def _check_lists_of_experts(bench: Bench) -> Iterator[Comparison]:
    """Every tile that tokens sorted by expert run with."""
    for each in bench.model.mixtures():
        yield from experts.check_every_tile(
            bench.inputs, each.experts, each.routing.slots, invariant=bench.deterministic
        )
        if isinstance(form_of(each.experts.down), FP8):
            yield from pointwise.check_quantize_rows(bench.inputs, ROWS[0], each.experts.down.shape[2])


def _check_norms(bench: Bench) -> Iterator[Comparison]:
    """Layer norms of an encoder; else the norm alone, and after each product that is added to the residual stream, by itself or normed."""
    if bench.spec.encoder is not None:
        norm = bench.model.embedding_norm
        yield from pointwise.check_layer_norm(bench.inputs, norm.weight, norm.bias, norm.eps, ROWS[0])
        return
    weight, eps = bench.model.norm.weight, bench.model.norm.eps
    branch_norm = weight if any(product.post_norm for product in bench.model.products()) else None
    for rows in ROWS:
        yield from pointwise.check_add_rms_norm(bench.inputs, weight, eps, rows)
        if branch_norm is not None:
            for dtype in (torch.float32, bench.inputs.dtype):
                yield from pointwise.check_add_partials(bench.inputs, branch_norm, eps, rows, dtype=dtype)
        for product in bench.added():
            splits = slice_count(rows, product.weight)
            yield from pointwise.check_add_rms_norm(
                bench.inputs, weight, eps, rows, splits=splits, bias=product.bias, branch_norm=branch_norm
            )


def _sites(bench: Bench) -> Iterator[tuple[linear.LinearCase, Site]]:
    """The products that adapters can change."""
    sites = Layout.of(bench.model).sites
    for each, product in zip(bench.model.products(), bench.products, strict=True):
        if each.linear in sites:
            yield product, sites[each.linear]


def _check_low_rank(bench: Bench) -> Iterator[Comparison]:
    """Deltas of each shape of product, of few tokens and of many."""
    for _, site in _sites(bench):
        for tokens in ROWS:
            slots = [token % 3 for token in range(tokens)]
            how: dict[str, Any] = {"ranks": (16, bench.lora_rank), "invariant": bench.deterministic}
            yield from low_rank.check_add_low_rank(bench.inputs, site.runs, site.in_features, slots, **how)


def _check_adapted(bench: Bench) -> Iterator[Comparison]:
    """Products that add these themselves."""
    for product, site in _sites(bench):
        yield from linear.check_adapted(bench.inputs, product, site.runs, ranks=(16, bench.lora_rank))


def _check_slots(bench: Bench) -> Iterator[Comparison]:
    """The parts that slices of products and experts leave for other ranks."""
    size = bench.spec.hidden_size
    for product in bench.added():
        slices = slice_count(ROWS[1], product.weight)
        yield from rank_sums.check_add_slots(bench.inputs, slices, ROWS[1], size, product.bias)
    for each in bench.model.mixtures():
        yield from rank_sums.check_add_slots(bench.inputs, each.routing.slots, ROWS[0], size, some=True)


def _check_fp8_linear(bench: Bench) -> Iterator[Comparison]:
    """Products of many rows with 8-bit floats, and the rounding of their inputs."""
    for product in bench.products:
        if takes_fp8(product.weight, bench.inputs.normal(1)):
            yield from pointwise.check_quantize_rows(bench.inputs, ROWS[0], product.weight.shape[1])
            yield from linear.check_fp8_linear(bench.inputs, product, invariant=bench.deterministic)


def has_head(bench: Bench) -> bool:
    """True if a head drafts."""
    return bench.model.draft_head is not None


def _check_entering(bench: Bench) -> Iterator[Comparison]:
    head = bench.model.draft_head
    norms, how = (head.input_norm.weight, head.hidden_norm.weight), {"eps": head.spec.norm.eps}
    for width in (1, bench.max_width):
        yield from draft_head.check_enter_head(
            bench.inputs, head.embedding.weight, width, norms, **how, scale=head.embedding.scale
        )


def _gates(bench: Bench) -> list[tuple[Any, ...]]:
    """The gates of batches too large for the products that have them fused in."""
    return [(ROWS[0], each.width, each.gate) for each in bench.products if each.gate is not None]


def _embedding(bench: Bench) -> list[tuple[Any, ...]]:
    return [(bench.model.embedding.weight, bench.model.embedding.scale)]


def _vocabulary(bench: Bench) -> list[tuple[Any, ...]]:
    return [(bench.spec.vocab_size,)]


def _drafted(bench: Bench) -> list[tuple[Any, ...]]:
    return [(bench.spec.vocab_size, width) for width in widths(bench)]


def _head_states(bench: Bench) -> list[tuple[Any, ...]]:
    return [(bench.model.draft_head.spec.hidden_size, width) for width in (1, bench.max_width)]


CHECKS: Final = (
    Check("scatter_runs", lambda bench: copies.check_scatter_runs(bench.inputs)),
    Check("embed_tokens, newest", with_each(copies.check_embed_newest, _embedding)),
    Check("embed_tokens", with_each(copies.check_embed_tokens, _embedding)),
    Check("add_rms_norm_into", _check_norms),
    Check("gated_activation_into", with_each(pointwise.check_gated_activation, _gates)),
    Check("row_linear", of_each(linear.check_row_linear, attrgetter("products")), fastest),
    Check("skinny_linear", of_each(linear.check_skinny_linear, Bench.kept), fastest),
    Check("split_linear", of_each(linear.check_split_linear, Bench.added), fastest),
    Check("gated_linear", of_each(linear.check_gated_linear, attrgetter("products")), fastest),
    Check("invariant_linear", of_each(linear.check_invariant_linear, attrgetter("products")), invariant),
    Check("fp8_linear", _check_fp8_linear),
    Check("packed_linear", of_each(linear.check_packed_linear, attrgetter("products")), fastest),
    Check("add_low_rank", _check_low_rank, lambda bench: bench.lora_rank > 0),
    Check("multiply_adapted", _check_adapted, lambda bench: bench.lora_rank > 0 and fastest(bench)),
    Check("choose_experts", _check_choices, has_experts),
    Check("feed_rows", _check_rows_of_experts, lambda bench: has_experts(bench) and fastest(bench)),
    Check("feed_lists", _check_lists_of_experts, has_experts),
    Check("add_slots_into", _check_slots, lambda bench: bench.ranks > 1),
    *chain.from_iterable(kind.on_gpu().checks for kind in KINDS.values()),
    Check("copy_pages_into", lambda bench: copies.check_copy_pages(bench.inputs, (3, 5000))),
    Check("sample_and_append", with_each(sampling.check_sample_and_append, _vocabulary)),
    Check("sample_and_append, drafts", with_each(sampling.check_drafted_draws, _drafted), drafting),
    Check("propose_ngrams", of_each(ngrams.check_propose_ngrams, widths), drafting),
    Check("enter_head", _check_entering, has_head),
    Check(
        "guess_tokens",
        with_each(draft_head.check_guess_tokens, lambda bench: [(bench.model.draft_head.spec.vocab_size,)]),
        has_head,
    ),
    Check("keep_states", with_each(draft_head.check_keep_states, _head_states), has_head),
    Check("apply_penalties", with_each(logits.check_apply_penalties, _vocabulary)),
    Check("count_tokens", with_each(logits.check_count_tokens, _vocabulary)),
    Check("token_logprobs", with_each(logits.check_token_logprobs, _vocabulary)),
)
"""A new kernel gets a line here, or in the folder of its mixer; checks run in this order."""
