"""Gate and up projections of many rows with the activation behind their sums, whose kernel needs a GPU of compute capability 9, and which steps take it."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda import many_rows
from nanoserve.adapters.pytorch.cuda.many_rows import InvariantProducts, VendorProducts
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.device.launch import has_wgmma
from nanoserve.kernels.gates import Activation, gated
from nanoserve.kernels.linear.cases import check_gated_linear
from nanoserve.kernels.linear.gated import launch
from nanoserve.kernels.testing import Inputs
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, serve
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_product
from tests.unit.adapters.pytorch.tiny_models import make_prompt, make_tiny_model

TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
SIZES = [(1, 128, 64), (300, 1024, 2048), (1000, 384, 1000), (2049, 256, 72), (129, 128, 8)]


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gated_products(dtype: torch.dtype, gate: Activation, device: torch.device) -> None:
    if not has_wgmma(device):
        pytest.skip("needs compute capability 9")
    half = Inputs(device, dtype)
    for rows, n, k in SIZES:
        agree(check_gated_linear(half, random_product(half, 2 * n, k, gate=gate), rows), TOLERANCE[dtype])


def test_sizes_that_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.empty(1, 64, dtype=torch.bfloat16), torch.empty(256, 64)
    assert not launch.fits_gated(x, weight)
    monkeypatch.setattr(launch, "has_wgmma", lambda _: True)
    assert launch.fits_gated(x, weight)
    assert not launch.fits_gated(x.float(), weight)
    assert not launch.fits_gated(x[:, :60], weight)
    assert not launch.fits_gated(x, weight[:128])


def gated_linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, gate: Activation) -> None:
    out.copy_(gated(x @ weight.t(), gate))


def test_few_rows_biases_and_invariant_products_have_their_projections_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many_rows, "LEAST_ROWS", 4)
    monkeypatch.setattr(many_rows, "fits_gated", lambda *_: True)
    monkeypatch.setattr(many_rows, "gated_linear", gated_linear)
    linear, biased = Linear(8, 6), Linear(8, 6, bias=True)
    space: Any = types.SimpleNamespace(widened=None)
    for each in (linear, biased):
        torch.nn.init.normal_(each.weight)
    x, out = torch.randn(5, 8), torch.full((5, 3), torch.nan)
    vendor = VendorProducts()
    with torch.inference_mode():
        assert not vendor.multiply_gated(space, x[:3], linear, out, "silu")
        assert not vendor.multiply_gated(space, x, biased, out, "silu")
        assert not InvariantProducts().multiply_gated(space, x, linear, out, "silu")
        assert out.isnan().all()
        assert vendor.multiply_gated(space, x, linear, out, "silu")
    assert torch.equal(out, gated(x @ linear.weight.t(), "silu"))


def test_steps_of_many_tokens_read_what_was_gated(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_tiny_model(tmp_path, "llama")
    model, rows = tiny.build(device=DEVICE), list[int]()

    def noted(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, gate: Activation) -> None:
        rows.append(len(x))
        gated_linear(x, weight, out, gate=gate)

    prompts = [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in (9, 30)]
    params = [SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=0)] * 2
    wanted = serve(model).answers(prompts, params)
    monkeypatch.setattr(many_rows, "LEAST_ROWS", 20)
    monkeypatch.setattr(many_rows, "fits_gated", lambda *_: True)
    monkeypatch.setattr(many_rows, "gated_linear", noted)
    found = serve(model).answers(prompts, params)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert rows
    assert min(rows) >= 20
