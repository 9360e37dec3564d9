"""Every kernel that serving may launch, and what a model gives its cases: dimensions, and weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.attending import rotation_table
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet
from nanoserve.adapters.pytorch.mixers.latent.part import INNER_NORM
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.decoder import make_rotaries
from nanoserve.kernels.copies import cases as copies
from nanoserve.kernels.delta_rule import cases as delta_rule
from nanoserve.kernels.experts import cases as experts
from nanoserve.kernels.latent_attention import cases as latent_attention
from nanoserve.kernels.linear import cases as linear
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.logits import cases as logits
from nanoserve.kernels.paged_attention import cases as paged_attention
from nanoserve.kernels.pointwise import cases as pointwise
from nanoserve.kernels.rank_sums import cases as rank_sums
from nanoserve.kernels.recurrent import DeltaHeads
from nanoserve.kernels.rope_and_cache import cases as rope_and_cache
from nanoserve.kernels.sampling import cases as sampling
from nanoserve.kernels.testing import Comparison, Inputs
from nanoserve.kernels.testing_attention import Heads, LatentHeads
from nanoserve.ports.layer_spec import AttentionSpec, LatentSpec
from nanoserve.ports.model_spec import ModelSpec

T = TypeVar("T")
ROWS = (5, 33)
"""Numbers of rows on either side of where kernels change their shape."""
POSITIONS = 128
"""More than the rows have tokens that are rotated."""


@attrs.frozen(eq=False, kw_only=True)
class Bench:
    """One model, where it is.

    Attributes:
        block_size: tokens per block of the KV cache.
        deterministic: whether serving uses the kernels whose results do not depend on the batch.
        pdl: whether serving launches the kernels of decoding steps with programmatic dependent launch.
        ranks: how many GPUs compute the model together.
    """

    model: DecoderModel
    block_size: int
    deterministic: bool = False
    pdl: bool = False
    ranks: int = 1
    inputs: Inputs = attrs.field(init=False)
    products: tuple[linear.LinearCase, ...] = attrs.field(init=False)

    @inputs.default
    def _make_inputs(self) -> Inputs:
        return Inputs(self.device, self.dtype, pdl=self.pdl)

    @products.default
    def _find_products(self) -> tuple[linear.LinearCase, ...]:
        """Each shape of product once, and the head; what has no norm before it is added to the residual stream."""
        found = []
        for each in self.model.products():
            weight, eps = (None, 0.0) if each.norm is None else (each.norm.weight, each.norm.eps)
            own = each.linear
            found.append(
                linear.LinearCase(each.name, own.matrix, own.bias, weight, eps, each.gate, each.added)
            )
        return tuple(found)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self.embedding.dtype

    @property
    def spec(self) -> ModelSpec:
        """The model's dimensions."""
        return self.model.spec

    @property
    def embedding(self) -> Tensor:
        """The weight that tokens are looked up in."""
        return self.model.embedding.weight

    def added(self) -> list[linear.LinearCase]:
        """The products that are added to the residual stream, whose partial sums the next norm adds up."""
        return [product for product in self.products if product.added]

    def kept(self) -> list[linear.LinearCase]:
        """Those whose results are wanted as they are: other ranks wait for what is added, too."""
        return [product for product in self.products if self.ranks > 1 or not product.added]

    def heads(self) -> list[Heads]:
        """The dimensions of attention, once per kind of layer."""
        tables = {
            rotation: rotation_table(rotary, POSITIONS, self.device)
            for rotation, rotary in make_rotaries(self.spec, self.device).items()
        }
        mixers = [layer.mixer for layer in self.spec.layers if isinstance(layer.mixer, AttentionSpec)]
        return [
            Heads(
                *(each.num_heads, each.num_kv_heads, each.head_dim, self.block_size),
                *(each.window, each.qk_norm == "head", self.spec.norm.eps, tables[each.rotation]),
                *(each.scale, each.soft_cap, each.sinks, self.model.norm.weight.dtype),
            )
            for each in dict.fromkeys(mixers)
        ]

    def latents(self) -> list[LatentHeads]:
        """The dimensions of latent attention, once per kind of layer."""
        mixers = [layer.mixer for layer in self.spec.layers if isinstance(layer.mixer, LatentSpec)]
        rotaries = make_rotaries(self.spec, self.device)
        return [
            LatentHeads(
                *(each.num_heads, each.latent_dim, each.rope_dim, each.nope_dim, each.value_dim),
                block_size=self.block_size,
                eps=INNER_NORM.eps,
                rotations=rotation_table(rotaries[each.rotation], POSITIONS, self.device),
            )
            for each in dict.fromkeys(mixers)
        ]

    def delta_heads(self) -> list[DeltaHeads]:
        """The dimensions of gated delta nets, once each."""
        parts = (part for parts in self.model.layers for part in parts)
        return list(dict.fromkeys(part.heads for part in parts if isinstance(part, DeltaNet)))

    def gates(self) -> list[int]:
        """The widths of gated attention, once each."""
        parts = (part for parts in self.model.layers for part in parts)
        gated = (part for part in parts if isinstance(part, Attention) and part.is_gated)
        return list(dict.fromkeys(part.num_heads * part.head_dim for part in gated))


@attrs.frozen
class Check:
    """How one kernel is tried: `run` launches it in every case and yields what came of it.

    A model that has nothing for a kernel to compute has no cases of it.

    Attributes:
        kernel: the function's name, as errors shall call it.
        when: whether serving launches it at all.
    """

    kernel: str
    run: Callable[[Bench], Iterator[Comparison]]
    when: Callable[[Bench], bool] = lambda _: True


def fastest(bench: Bench) -> bool:
    """Whether results may depend on the batch."""
    return not bench.deterministic


def deterministic(bench: Bench) -> bool:
    """Whether they may not."""
    return bench.deterministic


def has_experts(bench: Bench) -> bool:
    """Whether there are feeds that are mixtures of experts."""
    return bool(bench.model.mixtures())


def norms_vectors(bench: Bench) -> bool:
    """Whether anything happens to whole queries, keys and values."""
    return bool(_vectors(bench))


def _vectors(bench: Bench) -> list[dict[str, Any]]:
    parts = [part for parts in bench.model.kinds() for part in parts if isinstance(part, Attention)]
    return [part.vectors for part in parts if part.vectors is not None]


def _check_vectors(bench: Bench) -> Iterator[Comparison]:
    """Queries, keys and values of a few tokens."""
    for each in _vectors(bench):
        norms = each["q_norm"], each["k_norm"]
        yield from pointwise.check_norm_qkv(
            bench.inputs, ROWS[0], each["sizes"], norms, eps=each["eps"], clip=each["clip"]
        )


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
        for tokens, norm_weight in ((1, weight), (3, None)):
            chosen = experts.random_choice(bench.inputs, tokens, each.routing.slots, len(each.experts.down))
            yield from experts.check_feed_rows(bench.inputs, each.experts, chosen, norm_weight, eps)


def _check_lists_of_experts(bench: Bench) -> Iterator[Comparison]:
    """Every tile that tokens sorted by expert run with."""
    for each in bench.model.mixtures():
        yield from experts.check_every_tile(
            bench.inputs, each.experts, each.routing.slots, invariant=bench.deterministic
        )


def _check_norms(bench: Bench) -> Iterator[Comparison]:
    """The norm alone, and after each product that is added to the residual stream, by itself or normed."""
    weight, eps = bench.model.norm.weight, bench.model.norm.eps
    branch_norm = weight if any(product.post_norm for product in bench.model.products()) else None
    for rows in ROWS:
        yield from pointwise.check_add_rms_norm(bench.inputs, weight, eps, rows)
        if branch_norm is not None:
            for dtype in (torch.float32, bench.dtype):
                yield from pointwise.check_add_partials(bench.inputs, branch_norm, eps, rows, dtype=dtype)
        for product in bench.added():
            splits = split_count(rows, *product.weight.shape)
            yield from pointwise.check_add_rms_norm(
                bench.inputs, weight, eps, rows, splits=splits, bias=product.bias, branch_norm=branch_norm
            )


def _check_slots(bench: Bench) -> Iterator[Comparison]:
    """What slices of products and experts leave for other ranks."""
    size = bench.spec.hidden_size
    for product in bench.added():
        slices = split_count(ROWS[1], *product.weight.shape)
        yield from rank_sums.check_add_slots(bench.inputs, slices, ROWS[1], size, product.bias)
    for each in bench.model.mixtures():
        yield from rank_sums.check_add_slots(bench.inputs, each.routing.slots, ROWS[0], size)


def _check_gates(bench: Bench) -> Iterator[Comparison]:
    """The gate of a batch too large for the products that have it fused in."""
    for product in bench.products:
        if product.gate is not None:
            yield from pointwise.check_gated_activation(bench.inputs, ROWS[0], product.width, product.gate)


def _check_attention_gate(inputs: Inputs, width: int) -> Iterator[Comparison]:
    return pointwise.check_sigmoid_mul(inputs, ROWS[0], width)


def _recurs(bench: Bench) -> bool:
    """Whether some layers keep states."""
    return bool(bench.delta_heads())


def _each(
    check: Callable[[Inputs, T], Iterator[Comparison]], of: Callable[[Bench], Iterable[T]]
) -> Callable[[Bench], Iterator[Comparison]]:
    """A check of each product, or of each kind of heads, of a model."""
    return lambda bench: chain.from_iterable(check(bench.inputs, each) for each in of(bench))


def _check_newest_states(bench: Bench) -> Iterator[Comparison]:
    """States through one token each, with the arithmetic that serving asks for."""
    for heads in bench.delta_heads():
        yield from delta_rule.check_delta_newest(bench.inputs, heads, invariant=bench.deterministic)


def _check_head_products(bench: Bench) -> Iterator[Comparison]:
    """The products of each head with the weights around latent attention."""
    for sizes in bench.latents():
        for tokens in ROWS:
            yield from latent_attention.check_head_linear(bench.inputs, sizes, tokens)


def _vocabulary(
    check: Callable[[Inputs, int], Iterator[Comparison]],
) -> Callable[[Bench], Iterator[Comparison]]:
    """A check over rows of logits."""
    return lambda bench: check(bench.inputs, bench.spec.vocab_size)


def _one_kind(bench: Bench) -> list[Heads]:
    """Heads for kernels to which a window is nothing."""
    return [each._replace(window=None) for each in bench.heads()[:1]]


CHECKS: Final = (
    Check("scatter_runs", lambda bench: copies.check_scatter_runs(bench.inputs)),
    Check(
        "embed_tokens, newest",
        lambda bench: copies.check_embed_newest(
            bench.inputs, bench.embedding, scale=bench.model.embedding.scale
        ),
    ),
    Check(
        "embed_tokens",
        lambda bench: copies.check_embed_tokens(bench.inputs, bench.embedding, bench.model.embedding.scale),
    ),
    Check("add_rms_norm_into", _check_norms),
    Check("gated_activation_into", _check_gates),
    Check("row_linear", _each(linear.check_row_linear, lambda bench: bench.products), fastest),
    Check("skinny_linear", _each(linear.check_skinny_linear, Bench.kept), fastest),
    Check("split_linear", _each(linear.check_split_linear, Bench.added), fastest),
    Check(
        "invariant_linear", _each(linear.check_invariant_linear, lambda bench: bench.products), deterministic
    ),
    Check("choose_experts", _check_choices, has_experts),
    Check("feed_rows", _check_rows_of_experts, lambda bench: has_experts(bench) and fastest(bench)),
    Check("feed_lists", _check_lists_of_experts, has_experts),
    Check("add_slots_into", _check_slots, lambda bench: bench.ranks > 1),
    Check("norm_qkv_into", _check_vectors, norms_vectors),
    Check("rope_and_cache", _each(rope_and_cache.check_rope_and_cache, _one_kind)),
    Check("prefill_attention", _each(paged_attention.check_prefill_attention, Bench.heads)),
    Check("decode_attention", _each(paged_attention.check_decode_attention, Bench.heads), fastest),
    Check(
        "rope_and_cache, newest", _each(rope_and_cache.check_rope_and_cache_newest, _one_kind), deterministic
    ),
    Check(
        "prefill_attention, newest",
        _each(paged_attention.check_prefill_attention_newest, Bench.heads),
        deterministic,
    ),
    Check("write_latents", _each(rope_and_cache.check_write_latents, Bench.latents)),
    Check("head_linear", _check_head_products),
    Check("expanded_attention", _each(latent_attention.check_expanded_attention, Bench.latents), fastest),
    Check("latent_prefill", _each(latent_attention.check_latent_prefill, Bench.latents)),
    Check("latent_decode", _each(latent_attention.check_latent_decode, Bench.latents), fastest),
    Check("sigmoid_mul_into", _each(_check_attention_gate, Bench.gates), lambda bench: bool(bench.gates())),
    Check("copy_pages_into", lambda bench: copies.check_copy_pages(bench.inputs, (3, 5000))),
    Check("delta_rule_newest", _check_newest_states, _recurs),
    Check("delta_rule_chunks", _each(delta_rule.check_delta_chunks, Bench.delta_heads), deterministic),
    Check(
        "delta_rule_tiles",
        _each(delta_rule.check_delta_tiles, Bench.delta_heads),
        lambda bench: _recurs(bench) and fastest(bench),
    ),
    Check("sample_and_append", _vocabulary(sampling.check_sample_and_append)),
    Check("apply_penalties", _vocabulary(logits.check_apply_penalties)),
    Check("count_tokens", _vocabulary(logits.check_count_tokens)),
    Check("token_logprobs", _vocabulary(logits.check_token_logprobs)),
)
"""A new kernel gets a line here; what shall be tried first comes first."""
