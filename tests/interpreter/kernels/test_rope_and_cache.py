"""Projections become queries and cache entries as by definition; every other place of the cache stays NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.latent_attention import launch
from nanoserve.kernels.latent_attention.cases import check_head_linear
from nanoserve.kernels.latent_attention.launch import head_linear
from nanoserve.kernels.rope_and_cache.cases import check_latents, check_tokens, check_write_latents
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, write_latents
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import Heads, LatentHeads, Places, paged_cache
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HEADS = Heads(4, 2, 64, eps=1e-5)
CHUNK_AND_DECODE = [(3, position) for position in range(13, 19)] + [(0, 0), (4, 299), (1, 31), (2, 32)]
PADDING = [(1, 7), (4, 0), (4, 0), (4, 0)]
NORMS = pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])


@NORMS
@cases("head_dim", [80], also=[64, 96, 128, 256])
def test_it_equals_the_reference(head_dim: int, norm: bool, inputs: Inputs) -> None:
    heads = HEADS._replace(head_dim=head_dim, norm=norm)
    agree(check_tokens(inputs, heads, CHUNK_AND_DECODE), TOLERANCE[inputs.dtype])


@cases("block_size", [48], also=[16, 32, 128])
def test_block_sizes(block_size: int, inputs: Inputs) -> None:
    heads = HEADS._replace(block_size=block_size)
    agree(check_tokens(inputs, heads, CHUNK_AND_DECODE), TOLERANCE[inputs.dtype])


@cases("heads", [(9, 3)], also=[(1, 1), (28, 4), (40, 8), (33, 33), (3, 1)], ids=str)
def test_head_counts(heads: tuple[int, int], inputs: Inputs) -> None:
    normed = Heads(*heads, 64, norm=True, eps=1e-5)
    agree(check_tokens(inputs, normed, [(1, 5), (0, 20)]), TOLERANCE[inputs.dtype])


@cases("head_dim", [80], also=[64, 128, 256])
def test_keys_and_values_in_8_bits(head_dim: int, inputs: Inputs) -> None:
    heads = HEADS._replace(head_dim=head_dim, norm=True, narrow=True)
    agree(check_tokens(inputs, heads, CHUNK_AND_DECODE), TOLERANCE[inputs.dtype])
    agree(check_tokens(inputs, heads, [(4, 0), (0, 299), (2, 16)], newest=True), TOLERANCE[inputs.dtype])


@NORMS
def test_the_newest_tokens_find_their_own_positions(norm: bool, inputs: Inputs) -> None:
    newest = [(4, 0), (0, 299), (2, 16), (1, 15)]
    agree(check_tokens(inputs, HEADS._replace(norm=norm), newest, newest=True), TOLERANCE[inputs.dtype])


def test_drafted_tokens_stand_behind_the_newest_up_to_their_rows_limit(inputs: Inputs) -> None:
    heads, at = (
        HEADS._replace(norm=True),
        [(1, 13), (1, 14), (1, 15), (1, 16), (0, 2), (0, 3), (0, 4), (0, 5)],
    )
    places, qkv = Places.of(inputs, at), heads.projections(inputs, len(at))
    caches = [paged_cache(inputs, heads, [(0, end) for end in places.ends], unwritten=20)] * 2
    caches = [each._replace(keys=each.keys.clone(), values=each.values.clone()) for each in caches]
    queries, transform = inputs.poisoned(2, len(at), 4 * 64), heads.transform(inputs, 20)
    rope_and_cache(qkv, queries[0], caches[0], transform, token_rows=places.rows, positions=places.positions)
    which: dict[str, Any] = {"token_rows": inputs.these([1, 0]), "positions": inputs.these([3, 14])}
    which |= {"limits": inputs.these([5, 18]), "width": 4}
    rope_and_cache(qkv, queries[1], caches[1], transform, newest=True, **which)
    blocks, offsets = places.slots(caches[0].tables, heads.block_size)
    for pool in caches[0][:2]:
        pool[blocks[6:], :, offsets[6:]] = torch.nan
    for one, other in ((queries[0], queries[1]), *zip(caches[0][:2], caches[1][:2], strict=True)):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_a_normed_head_is_rounded_before_it_is_rotated(device: torch.device) -> None:
    half, heads = Inputs(device, torch.float16), HEADS._replace(norm=True)
    query = next(check_tokens(half, heads, CHUNK_AND_DECODE))
    assert (query.got == query.wanted.half()).float().mean() > 0.99


def test_padding_may_share_one_slot(inputs: Inputs) -> None:
    agree(check_tokens(inputs, HEADS, PADDING, alike=3), TOLERANCE[inputs.dtype])
    agree(check_latents(inputs, ODD, PADDING, alike=3), TOLERANCE[inputs.dtype])


ODD = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14)
DEEPSEEK = LatentHeads(16, 512, 64, 128, 128, block_size=32)
SIZES = {"odd": ODD, "deepseek": DEEPSEEK, "many-heads": ODD._replace(num_heads=35, eps=1e-2, block_size=48)}


@pytest.mark.parametrize("sizes", SIZES)
def test_entries_and_rotated_queries_equal_the_reference(sizes: str, inputs: Inputs) -> None:
    agree(check_write_latents(inputs, SIZES[sizes]), TOLERANCE[inputs.dtype])


def test_drafted_latents_stand_behind_the_newest_up_to_their_rows_limit(inputs: Inputs) -> None:
    at = [(1, 13), (1, 14), (1, 15), (1, 16), (0, 2), (0, 3), (0, 4), (0, 5)]
    places, norm, rotations = Places.of(inputs, at), inputs.normal(20), ODD.turns(inputs, 20)
    projected, heads = inputs.normal(8, ODD.width), inputs.normal(8, 3, 16)
    caches = [ODD.cache(inputs, places.ends, unwritten=20)] * 2
    caches = [each._replace(entries=each.entries.clone()) for each in caches]
    rotated = inputs.poisoned(2, 8, 3, 6)
    how: dict[str, Any] = {"norm_weight": norm, "eps": 1e-5, "rotations": rotations}
    plain: dict[str, Any] = {"token_rows": places.rows, "positions": places.positions}
    write_latents(projected, heads, rotated[0], caches[0], **how, **plain)
    how |= {"token_rows": inputs.these([1, 0]), "positions": inputs.these([3, 14]), "newest": True}
    write_latents(projected, heads, rotated[1], caches[1], **how, limits=inputs.these([5, 18]), width=4)
    blocks, offsets = places.slots(caches[0].tables, ODD.block_size)
    caches[0].entries[blocks[6:], offsets[6:]] = torch.nan
    for one, other in (rotated, (caches[0].entries, caches[1].entries)):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


@cases("tokens", [3, 40], also=[1, 16, 17, 64, 65])
@cases("sizes", ["odd"], also=["deepseek", "many-heads"])
def test_products_of_heads_equal_the_reference(sizes: str, tokens: int, inputs: Inputs) -> None:
    agree(check_head_linear(inputs, SIZES[sizes], tokens), 2 * TOLERANCE[inputs.dtype])


def test_a_token_has_the_same_bits_in_any_company(inputs: Inputs) -> None:
    x, weight = inputs.normal(37, 3, 150), inputs.normal(3, 150, 40)
    together, alone = inputs.poisoned(37, 3, 40), inputs.poisoned(37, 3, 40)
    head_linear(x, weight, together, invariant=True)
    for token in (0, 15, 16, 36):
        head_linear(x[token : token + 1], weight, alone[token : token + 1], invariant=True)
        assert torch.equal(together[token], alone[token])


@pytest.mark.parametrize(("tokens", "invariant", "tile"), [(32, False, 16), (33, False, 64), (33, True, 16)])
def test_crowds_share_a_tile_where_bits_may_depend_on_it(
    tokens: int, invariant: bool, tile: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    kernel = vars(launch)["head_linear_kernel"]

    class Recorded:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(**named: Any) -> None:
                launched.append(named["TOKENS"])
                kernel[grid](**named)

            return run

    monkeypatch.setattr(launch, "head_linear_kernel", Recorded())
    inputs = Inputs(device, torch.float16)
    out = inputs.poisoned(tokens, 3, 40)
    head_linear(inputs.normal(tokens, 3, 16), inputs.normal(3, 16, 40), out, invariant=invariant)
    assert launched == [tile]
    assert out.isfinite().all()


def test_no_tokens_are_no_launch(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "head_linear_kernel", None)  # which cannot be launched
    head_linear(inputs.normal(0, 3, 8), inputs.normal(3, 8, 4), inputs.normal(0, 3, 4))
