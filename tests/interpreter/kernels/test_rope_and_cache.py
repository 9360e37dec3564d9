"""Projections become queries and cache entries as by definition; every other place of the cache stays NaN."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.rope_and_cache.cases import check_tokens
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import Heads
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HEADS = Heads(4, 2, 64, eps=1e-5)
CHUNK_AND_DECODE = [(3, position) for position in range(13, 19)] + [(0, 0), (4, 299), (1, 31), (2, 32)]
NORMS = pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])


@NORMS
@cases("head_dim", [80], also=[64, 96, 128, 256])
def test_it_equals_the_reference(head_dim: int, norm: bool, inputs: Inputs) -> None:
    agree(
        check_tokens(inputs, HEADS._replace(head_dim=head_dim, norm=norm), CHUNK_AND_DECODE),
        TOLERANCE[inputs.dtype],
    )


@cases("block_size", [48], also=[16, 32, 128])
def test_block_sizes(block_size: int, inputs: Inputs) -> None:
    agree(
        check_tokens(inputs, HEADS._replace(block_size=block_size), CHUNK_AND_DECODE), TOLERANCE[inputs.dtype]
    )


@cases("heads", [(9, 3)], also=[(1, 1), (28, 4), (40, 8), (33, 33), (3, 1)], ids=str)
def test_head_counts(heads: tuple[int, int], inputs: Inputs) -> None:
    agree(
        check_tokens(inputs, Heads(*heads, 64, norm=True, eps=1e-5), [(1, 5), (0, 20)]),
        TOLERANCE[inputs.dtype],
    )


@NORMS
def test_the_newest_tokens_find_their_own_positions(norm: bool, inputs: Inputs) -> None:
    agree(
        check_tokens(inputs, HEADS._replace(norm=norm), [(4, 0), (0, 299), (2, 16), (1, 15)], newest=True),
        TOLERANCE[inputs.dtype],
    )


def test_a_normed_head_is_rounded_before_it_is_rotated(device: torch.device) -> None:
    half, heads = Inputs(device, torch.float16), HEADS._replace(norm=True)
    query = next(check_tokens(half, heads, CHUNK_AND_DECODE))
    assert (query.got == query.wanted.half()).float().mean() > 0.99


def test_padding_may_share_one_slot(inputs: Inputs) -> None:
    tokens = [(1, 7), (4, 0), (4, 0), (4, 0)]
    agree(check_tokens(inputs, HEADS, tokens, alike=3), TOLERANCE[inputs.dtype])
