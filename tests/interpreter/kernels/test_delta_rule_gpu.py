"""The gated delta rule of a GPU equals its recurrence over slots of NaN."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.delta_rule import reference
from nanoserve.kernels.delta_rule.cases import (
    check_delta_chunks,
    check_delta_newest,
    random_states,
    random_tokens,
    random_weights,
)
from nanoserve.kernels.delta_rule.launch import TileSpace, delta_rule_newest, delta_rule_tiles
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
IN_TILES = {torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 7.5e-2}
"""Tiles round to the dtype what they multiply: queries, keys, values, both matrices, the state, the changes (twice) and the result.

These nine roundings, computed on a CPU for the cases below with 30 seeds, and nothing else, leave results that differ from those in
float64 by up to 1.3 (float16) and 1.9 (bfloat16) times the tolerances of a kernel that keeps all that in float32; without any one
of them the difference is hardly less. In float32 products of three TF32 ones come to 0.8 times, to which a GPU's exponentials
add. These tolerances are two and a half times the others.
"""
SMALL = [DeltaHeads(3, 6, 12, 20, 4)]
LARGE = [DeltaHeads(2, 2, 16, 8, 4), DeltaHeads(1, 4, 8, 16, 3), DeltaHeads(2, 4, 128, 128, 4)]
TILED = pytest.mark.parametrize("tiled", [False, True], ids=["token by token", "in tiles"])
HEADS = cases("heads", SMALL, also=LARGE, ids=str)


@pytest.mark.parametrize("invariant", [False, True])
@HEADS
def test_newest_tokens(inputs: Inputs, heads: DeltaHeads, *, invariant: bool) -> None:
    agree(check_delta_newest(inputs, heads, invariant=invariant), TOLERANCE[inputs.dtype])


@TILED
@HEADS
def test_chunks(inputs: Inputs, heads: DeltaHeads, *, tiled: bool) -> None:
    chunks = [(0, 7), (63, 2), (64, 1), (3, 66)]
    compared = check_delta_chunks(inputs, heads, chunks, tiled=tiled)
    agree(compared, (IN_TILES if tiled else TOLERANCE)[inputs.dtype])


@HEADS
def test_chunks_that_are_only_looked_at_leave_states_as_they_are(inputs: Inputs, heads: DeltaHeads) -> None:
    agree(check_delta_chunks(inputs, heads, [(0, 3), (5, 1), (64, 4)], keep=False), TOLERANCE[inputs.dtype])


SHORT, AROUND_A_TILE = (1, 3, 4), (63, 64, 65)


@pytest.mark.parametrize(
    ("length", "tiled"), [*itertools.product(SHORT, (False, True)), *((each, True) for each in AROUND_A_TILE)]
)
def test_chunks_shorter_and_longer_than_the_convolution(inputs: Inputs, length: int, *, tiled: bool) -> None:
    chunks = [(0, length), (1, length), (2, length), (130, length)]
    heads = DeltaHeads(1, 1, 8, 8, 4)
    compared = check_delta_chunks(inputs, heads, chunks, tiled=tiled)
    agree(compared, (IN_TILES if tiled else TOLERANCE)[inputs.dtype])


CUT = DeltaHeads(1, 2, 8, 12, 4)


def one_row(inputs: Inputs, tokens: int) -> tuple[Inputs, DeltaWeights, Tensor]:
    """The same numbers whenever it is called."""
    inputs = Inputs(inputs.device, inputs.dtype)
    return inputs, random_weights(inputs, CUT), random_tokens(inputs, CUT, tokens)


def in_pieces(inputs: Inputs, tokens: int, *cuts: int, decoded: int = 0) -> tuple[Tensor, DeltaStates]:
    """Results of one row whose prompt is cut, and of so many tokens behind it, and its states."""
    inputs, weights, projected = one_row(inputs, tokens + decoded)
    states, table = random_states(inputs, CUT, [], 2), inputs.these([[1]])
    space = TileSpace.create(tokens, [CUT], dtype=inputs.dtype, device=inputs.device)
    out = inputs.poisoned(len(projected), CUT.inner)
    for first, end in itertools.pairwise((0, *cuts, tokens)):
        piece = (projected[first:end], states, weights, CUT, out[first:end])
        spans = inputs.these([[0, 0, end - first, first]])
        delta_rule_tiles(*piece, spans=spans, tables=table, space=space)
    for at in range(tokens, tokens + decoded):
        piece = (projected[at : at + 1], states, weights, CUT, out[at : at + 1])
        length = inputs.these([at + 1])
        delta_rule_newest(*piece, batch_rows=inputs.these([0]), lengths=length, tables=table)
    return out, DeltaStates(states.sums[1], states.recent[1])


def test_rows_that_are_cut_at_tiles_compute_the_same_bits(inputs: Inputs) -> None:
    whole, cut = in_pieces(inputs, 150), in_pieces(inputs, 150, 64, 128)
    assert torch.equal(whole[0], cut[0])
    assert all(torch.equal(first, second) for first, second in zip(whole[1], cut[1], strict=True))


@pytest.mark.parametrize("cuts", [(1, 16, 100), (3, 5, 63, 65)])
def test_cuts_anywhere_and_tokens_one_by_one_compute_the_same(inputs: Inputs, cuts: tuple[int, ...]) -> None:
    whole, cut = in_pieces(inputs, 130), in_pieces(inputs, 126, *cuts, decoded=4)
    inputs, weights, projected = one_row(inputs, 130)
    where = {"slots": [1], "starts": [0], "lengths": [130]}
    *_, shares = reference.delta_rule(projected, random_states(inputs, CUT, [], 2), weights, CUT, **where)
    for first, second in zip((whole[0] * shares, *whole[1]), (cut[0] * shares, *cut[1]), strict=True):
        torch.testing.assert_close(
            first.float(), second.float(), rtol=IN_TILES[inputs.dtype], atol=IN_TILES[inputs.dtype]
        )
