"""Norms of whole queries and keys equal their formula in float32, on each device."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.pointwise import norm_qkv, reference
from nanoserve.kernels.pointwise.cases import check_norm_qkv
from nanoserve.kernels.pointwise.launch import norm_qkv_into
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
CASES = pytest.mark.parametrize(
    ("normed", "clip"),
    [((True, True), None), ((True, True), 0.5), ((False, False), 0.5), ((False, True), None)],
    ids=str,
)


@CASES
@pytest.mark.parametrize("sizes", [(48, 32), (33, 96)], ids=str)
def test_on_a_gpu(
    normed: tuple[bool, bool], clip: float | None, sizes: tuple[int, int], inputs: Inputs
) -> None:
    norms = [1 + inputs.normal(size) if each else None for size, each in zip(sizes, normed, strict=True)]
    agree(check_norm_qkv(inputs, 5, sizes, (norms[0], norms[1]), eps=0.1, clip=clip), TOLERANCE[inputs.dtype])


@CASES
def test_on_a_cpu(normed: tuple[bool, bool], clip: float | None) -> None:
    inputs = Inputs(torch.device("cpu"), torch.float32)
    q_norm, k_norm = (
        1 + inputs.normal(size) if each else None for size, each in zip((48, 32), normed, strict=True)
    )
    qkv = inputs.normal(5, 48 + 32 + 32)
    kept = qkv.clone()
    got = norm_qkv(qkv, q_norm, k_norm, eps=0.1, clip=clip, sizes=(48, 32))
    torch.testing.assert_close(got, reference.norm_qkv(qkv, (q_norm, k_norm), 0.1, clip, (48, 32)))
    assert torch.equal(qkv, kept)


def test_a_tokens_bits_do_not_depend_on_the_others(inputs: Inputs) -> None:
    weight, crowd = inputs.normal(64), inputs.normal(9, 192)
    alone = crowd[4:5].clone()
    for qkv in (crowd, alone):
        norm_qkv_into(qkv, weight, weight, eps=0.1, clip=None, sizes=(64, 64))
    assert torch.equal(alone[0], crowd[4])
