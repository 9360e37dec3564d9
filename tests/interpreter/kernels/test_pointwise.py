"""The GPU's norms and gates equal their formulas in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.gates import ACTIVATIONS, Activation
from nanoserve.kernels.pointwise import norm_qkv, reference
from nanoserve.kernels.pointwise.cases import (
    check_add_partials,
    check_add_rms_norm,
    check_gated_activation,
    check_layer_norm,
    check_norm_qkv,
    check_sigmoid_mul,
)
from nanoserve.kernels.pointwise.launch import add_rms_norm_into, gated_activation_into, norm_qkv_into
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
SHAPES = cases(("m", "k"), [(5, 96)], also=[(1, 32), (2, 33), (19, 256), (3, 2880), (1, 8192)], ids=str)

GATES = pytest.mark.parametrize("activation", ACTIVATIONS)


@SHAPES
def test_norm_only_leaves_the_stream_alone(m: int, k: int, inputs: Inputs) -> None:
    agree(check_add_rms_norm(inputs, inputs.normal(k), 1e-2, m), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@SHAPES
def test_layer_norms_take_the_mean_away(m: int, k: int, *, biased: bool, inputs: Inputs) -> None:
    bias = inputs.normal(k) if biased else None
    agree(check_layer_norm(inputs, inputs.normal(k), bias, 1e-2, m), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@cases("splits", [3], also=[1, 8])
@SHAPES
def test_partial_sums_are_added_and_normed(
    m: int, k: int, splits: int, biased: bool, *, inputs: Inputs
) -> None:
    bias, weight, eps = inputs.normal(k) if biased else None, inputs.normal(k), 1e-2
    added: dict[str, Any] = {"splits": splits, "bias": bias}
    agree(check_add_rms_norm(inputs, weight, eps, m, **added), TOLERANCE[inputs.dtype])
    branch_norm = inputs.normal(k, dtype=torch.float32)
    normed = check_add_rms_norm(inputs, weight, eps, m, **added, branch_norm=branch_norm)
    agree(normed, TOLERANCE[inputs.dtype])
    agree(check_add_partials(inputs, branch_norm, eps, m, **added), TOLERANCE[inputs.dtype])


def test_a_weight_in_float32_is_not_rounded_before_the_product(device: torch.device) -> None:
    half = Inputs(device, torch.float16)
    x, weight, out = half.normal(5, 96), half.normal(96, dtype=torch.float32), half.poisoned(5, 96)
    add_rms_norm_into(x, weight, out, eps=1e-6)
    assert (out == reference.rms_norm(x, weight, 1e-6).half()).float().mean() > 0.99


def test_what_is_added_may_have_the_streams_dtype(inputs: Inputs) -> None:
    results = check_add_rms_norm(inputs, inputs.normal(48), 1e-5, 4, splits=1, dtype=inputs.dtype)
    agree(results, TOLERANCE[inputs.dtype])


def test_the_order_of_the_partial_sums_is_theirs(device: torch.device) -> None:
    x, weight = torch.zeros(1, 32, device=device), torch.ones(32, device=device)
    partials = torch.tensor([1e8, 1.0, -1e8], device=device)[:, None, None].expand(3, 1, 32).contiguous()
    add_rms_norm_into(x, weight, torch.empty_like(x), eps=1e-5, partials=partials)
    assert not x.any()  # 1 is lost in 1e8, as it would not be in another order
    x.zero_()
    add_rms_norm_into(x, weight, torch.empty_like(x), eps=1e-5, partials=partials[[0, 2, 1]])
    assert bool((x == 1).all())


def test_the_norm_is_that_of_the_rounded_stream(device: torch.device) -> None:
    x = torch.full((1, 32), 256.0, dtype=torch.float16, device=device)
    partials = torch.full((1, 1, 32), 0.1, device=device)
    partials[..., 0] = 700.1
    out = torch.empty(1, 32, device=device)
    add_rms_norm_into(x, torch.ones(32, dtype=torch.float16, device=device), out, eps=0.0, partials=partials)
    torch.testing.assert_close(out, reference.rms_norm(x, torch.ones(32, device=device), 0.0))


def test_rows_do_not_mix(inputs: Inputs) -> None:
    x, weight = inputs.normal(3, 40), inputs.normal(40)
    x[1] = torch.nan
    out = torch.zeros_like(x)
    add_rms_norm_into(x, weight, out, eps=1e-5, partials=torch.zeros(2, 3, 40, device=x.device))
    assert out.isnan().all(dim=1).tolist() == [False, True, False]


def test_a_bias_without_a_product_is_refused(device: torch.device) -> None:
    x = torch.zeros(1, 8, device=device)
    with pytest.raises(ValueError, match="bias"):
        add_rms_norm_into(x, x[0], x.clone(), eps=0.0, bias=x[0])


@cases(("m", "size"), [(2, 1500)], also=[(1, 16), (3, 33), (7, 1024), (1, 3072)], ids=str)
@GATES
@pytest.mark.filterwarnings("ignore:overflow")
def test_gated_activation(activation: Activation, m: int, size: int, inputs: Inputs) -> None:
    agree(check_gated_activation(inputs, m, size, activation), TOLERANCE[inputs.dtype])


@GATES
@pytest.mark.filterwarnings("ignore:overflow")
def test_extreme_gates_are_finite(activation: Activation, dtype: torch.dtype, device: torch.device) -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1, 2, 3, 4]], dtype=dtype, device=device)
    out = torch.full((1, 4), torch.nan, dtype=dtype, device=device)
    gated_activation_into(gate_up, out, activation=activation)
    assert out.tolist() == [[0.0, 0.0, 0.0, 800.0]]


@cases("rows", [17], also=[1, 16, 40])
def test_a_row_has_the_same_bits_among_any_number_of_rows(rows: int, inputs: Inputs) -> None:
    x, weight = inputs.normal(40, 1024), inputs.normal(1024)
    every, some = torch.empty_like(x), torch.empty_like(x[:rows])
    add_rms_norm_into(x, weight, every, eps=1e-5)
    add_rms_norm_into(x[:rows].clone(), weight, some, eps=1e-5)
    assert torch.equal(every[:rows], some)


@cases("size", [100], also=[64, 4096, 4099])
def test_sigmoid_mul(size: int, inputs: Inputs) -> None:
    agree(check_sigmoid_mul(inputs, 5, size), TOLERANCE[inputs.dtype])


CASES = pytest.mark.parametrize(
    ("normed", "clip"),
    [((True, True), None), ((True, True), 0.5), ((False, False), 0.5), ((False, True), None)],
    ids=str,
)


@CASES
@pytest.mark.parametrize("sizes", [(48, 32), (33, 96)], ids=str)
def test_whole_queries_and_keys_are_normed(
    normed: tuple[bool, bool], clip: float | None, sizes: tuple[int, int], inputs: Inputs
) -> None:
    norms = [1 + inputs.normal(size) if each else None for size, each in zip(sizes, normed, strict=True)]
    agree(check_norm_qkv(inputs, 5, sizes, (norms[0], norms[1]), eps=0.1, clip=clip), TOLERANCE[inputs.dtype])


@CASES
def test_whole_queries_and_keys_are_normed_on_a_cpu(normed: tuple[bool, bool], clip: float | None) -> None:
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
