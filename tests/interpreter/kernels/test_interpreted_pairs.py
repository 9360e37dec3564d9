"""What operators of interpreted kernels compute of blocks and numbers of one dtype and of several, of one shape and of others, is what torch does."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU"
)
SIZE = 8


@triton.jit
def pairs_kernel(out_ptr, a_ptr, b_ptr, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803 - Triton's language
    i = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i)[:, None]
    b = tl.load(b_ptr + start + i - start)[None, :]
    places = out_ptr + i[:, None] * BLOCK + i[None, :]
    tl.store(places, a + b)
    tl.store(places + BLOCK * BLOCK, a - b * 3)
    tl.store(places + 2 * BLOCK * BLOCK, 2 + a * b)
    tl.store(places + 3 * BLOCK * BLOCK, ((a < b) & (b != 2)) | (a >= 3))
    tl.store(places + 4 * BLOCK * BLOCK, (a > b) ^ ((a <= 1) & (a == b)))
    tl.store(places + 5 * BLOCK * BLOCK, a + start)


@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("one", [torch.float32, torch.float16, torch.int64, torch.int32, torch.int8])
def test_operators_compute_as_torch_does(one: torch.dtype, other: torch.dtype) -> None:
    a, b = torch.arange(-2, SIZE - 2).to(one), torch.arange(SIZE).flip(0).to(other)
    out = torch.full((6, SIZE, SIZE), -1.0, dtype=torch.float64)
    pairs_kernel[(1,)](out, a, b, -3, BLOCK=SIZE)
    a, b = a.double()[:, None], b.double()[None]
    expected = [
        a + b,
        a - b * 3,
        2 + a * b,
        ((a < b) & (b != 2)) | (a >= 3),
        (a > b) ^ ((a <= 1) & (a == b)),
        (a - 3).expand(-1, SIZE),
    ]
    assert torch.equal(out, torch.stack([each.double() for each in expected]))
