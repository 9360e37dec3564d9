"""Expanded attention equals its definition and the absorbed form, and no cut between tiles, chunks and rounds changes a bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from nanoserve.kernels.latent_attention.cases import CHUNKS, ExpandedCase
from nanoserve.kernels.latent_attention.launch import latent_prefill
from nanoserve.kernels.latent_attention.tuning import cut_rounds, expanded_block, is_cheaper
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import LatentHeads
from nanoserve.kernels.tiles import BlockSizes
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ODD = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14)
EVEN = ODD._replace(num_heads=4, latent_dim=32, rope_dim=16, nope_dim=16, value_dim=32)
DEEPSEEK = LatentHeads(16, 512, 64, 128, 128, block_size=32)
SMALL = BlockSizes(16, 16, 4, 2)
"""Many tiles and visits of few keys, so that small cases have edges of every kind."""
ROWS = {
    "one-token": [(0, 1)],
    "whole-visits": [(0, 32)],
    "chunk-from-mid-block": [(21, 19)],
    "unequal": [(0, 5), (40, 18), (0, 1), (70, 2)],
}


@cases("rows", ["unequal"], also=[each for each in ROWS if each != "unequal"])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
def test_it_equals_the_definition_over_nan(sizes: LatentHeads, rows: str, inputs: Inputs) -> None:
    case = ExpandedCase.of(inputs, sizes, ROWS[rows])
    for room in (None, 32):
        agree(
            compare_around_poison("tiles", case.tiled(SMALL, room=room), case.exact()),
            TOLERANCE[inputs.dtype],
        )


@cases("block_size", [48], also=[16, 128])
def test_the_sizes_of_deepseek(block_size: int, inputs: Inputs) -> None:
    if inputs.device.type == "cuda" and inputs.dtype == torch.float32:
        pytest.skip("products of 128 elements in float32 compile for minutes")
    rows = CHUNKS if inputs.device.type == "cuda" else [(30, 5), (0, 1)]
    case = ExpandedCase.of(inputs, DEEPSEEK._replace(block_size=block_size), rows)
    agree(compare_around_poison("tiles", case.tiled(), case.exact()), TOLERANCE[inputs.dtype])


def test_it_equals_the_absorbed_form(inputs: Inputs) -> None:
    case = ExpandedCase.of(inputs, EVEN, ROWS["unequal"])
    up_keys, up_values = case.up[:, : EVEN.nope_dim], case.up[:, EVEN.nope_dim :]
    heads = case.queries.tokens.nan_to_num()
    nope, rotated = heads[..., : EVEN.nope_dim], heads[..., EVEN.nope_dim :]
    query = torch.cat((torch.einsum("thn,hnl->thl", nope, up_keys), rotated), dim=2).contiguous()
    latents = torch.zeros_like(query[..., : EVEN.latent_dim])
    latent_prefill(query, case.cache, latents, tiles=case.queries.tiles(4), scale=EVEN.scale)
    absorbed = torch.einsum("thl,hvl->thv", latents.float(), up_values.float())
    got = case.tiled(SMALL)
    written = got.isnan().logical_not()
    agree([Comparison("absorbed", got[written], absorbed[written])], 2 * TOLERANCE[inputs.dtype])


def test_no_cut_changes_a_bit(inputs: Inputs) -> None:
    case = ExpandedCase.of(inputs, ODD, [(0, 23), (13, 29)])
    expected = case.tiled(SMALL).nan_to_num()
    for room, queries in ((16, 0), (32, 5), (80, 1)):
        assert torch.equal(case.tiled(SMALL, room=room, queries=queries).nan_to_num(), expected)
    for chunk in case.queries.chunks:
        (index, start, length, token), kept = chunk, slice(chunk[3], chunk[3] + chunk[2])
        alone = case.tiled(SMALL, chunks=[chunk])
        assert torch.equal(alone[kept], expected[kept])
        pieces = [(index, start, 9, token), (index, start + 9, length - 9, token + 9)]
        for part in pieces:
            behind_a_prefix = case.tiled(SMALL, room=32, chunks=[part])
            assert torch.equal(behind_a_prefix[part[3] :][: part[2]], expected[part[3] :][: part[2]])


def test_stale_table_entries_are_not_followed(inputs: Inputs) -> None:
    case = ExpandedCase.of(inputs, ODD, [(50, 20), (0, 4)])
    case.cache.tables[case.cache.tables == len(case.cache.entries) - 1] = 2**30
    agree(compare_around_poison("tiles", case.tiled(SMALL), case.exact()), TOLERANCE[inputs.dtype])


def test_rounds_hold_every_key_once_and_begin_where_visits_do() -> None:
    for rows, room in itertools.product(
        ([(3, 100), (1, 1), (0, 333), (7, 64)], [(0, 16)], [(2, 5000)]), (16, 40, 128, 9999)
    ):
        rounds = cut_rounds(rows, room, 16)
        reached = [0] * len(rows)
        for spans in rounds:
            place = 0
            for index, (row, begin, end, first) in enumerate(spans):
                assert (row, begin, first) == (rows[index][0], reached[index], place)
                assert begin % 16 == 0 or begin == end
                reached[index], place = end, place + end - begin
            assert 0 < place <= room
        assert reached == [end for _, end in rows]
        assert len(rounds) <= 1 + sum(end for _, end in rows) // (room - 15)


def test_the_form_with_less_arithmetic_is_chosen() -> None:
    sizes = {"latent_dim": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}
    assert is_cheaper([(0, 2048)], **sizes)
    assert is_cheaper([(0, 1)], **sizes)
    assert is_cheaper([(100_000, 180)], **sizes)
    assert not is_cheaper([(100_000, 160)], **sizes)
    assert not is_cheaper([(0, 64), (100_000, 1)], **sizes)


def test_blocks_fit_into_the_shared_memory_of_every_gpu() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        for capacity in (232_448, 166_912, 101_376):
            blocks = expanded_block(192, 128, dtype, capacity)
            assert (blocks.rows * 192 + blocks.stages * blocks.keys * 320) * dtype.itemsize <= capacity
    assert expanded_block(192, 128, torch.bfloat16) == BlockSizes(128, 64, 8, 3)
