"""What surrounds latent attention: cache entries and rotated queries as by definition, and the product of each head."""

from __future__ import annotations

import torch

from nanoserve.kernels.latent_attention.cases import check_head_linear
from nanoserve.kernels.latent_attention.launch import head_linear
from nanoserve.kernels.rope_and_cache.cases import check_latents, check_write_latents
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import LatentHeads
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ODD = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14)
DEEPSEEK = LatentHeads(16, 512, 64, 128, 128, block_size=32)
SIZES = {"odd": ODD, "deepseek": DEEPSEEK, "many-heads": ODD._replace(num_heads=35, eps=1e-2, block_size=48)}


@cases("sizes", SIZES, also=[])
def test_entries_and_rotated_queries_equal_the_reference(sizes: str, inputs: Inputs) -> None:
    agree(check_write_latents(inputs, SIZES[sizes]), TOLERANCE[inputs.dtype])


def test_padding_may_share_one_slot(inputs: Inputs) -> None:
    tokens = [(1, 7), (4, 0), (4, 0), (4, 0)]
    agree(check_latents(inputs, ODD, tokens, alike=3), TOLERANCE[inputs.dtype])


@cases("tokens", [3], also=[1, 16, 17, 64])
@cases("sizes", ["odd", "deepseek"], also=["many-heads"])
def test_products_of_heads_equal_the_reference(sizes: str, tokens: int, inputs: Inputs) -> None:
    agree(check_head_linear(inputs, SIZES[sizes], tokens), 2 * TOLERANCE[inputs.dtype])


def test_a_token_has_the_same_bits_in_any_company(inputs: Inputs) -> None:
    x, weight = inputs.normal(37, 3, 150), inputs.normal(3, 150, 40)
    together, alone = inputs.poisoned(37, 3, 40), inputs.poisoned(37, 3, 40)
    head_linear(x, weight, together)
    for token in range(37):
        head_linear(x[token : token + 1], weight, alone[token : token + 1])
    assert torch.equal(together, alone)


def test_no_tokens_are_no_launch(inputs: Inputs) -> None:
    head_linear(inputs.normal(0, 3, 8), inputs.normal(3, 8, 4), inputs.normal(0, 3, 4))
