"""What laws of bits rest on where kernels are interpreted: a row of a product is the same beside any others, on any processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton import language
from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU"
)


def product(a: Any, b: Any) -> Any:
    zeros = np.zeros((len(a), b.shape[1]), dtype=np.float32)
    kinds = {"float16": language.float16, "float32": language.float32}
    handles = [interpreter.TensorHandle(each, kinds[each.dtype.name]) for each in (a, b, zeros)]
    return interpreter.InterpreterBuilder().create_dot(*handles, None, 0).data


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("inner", [16, 64, 256])
def test_a_row_has_its_bits_in_tiles_of_every_shape(inner: int, dtype: type[np.floating[Any]]) -> None:
    generator = np.random.default_rng(inner)
    a, b = (generator.normal(size=size).astype(dtype) for size in ((64, inner), (inner, 64)))
    whole = product(a, b)
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-6, atol=1e-6)
    for rows, columns in ((1, 64), (2, 16), (8, 32), (32, 1), (16, 64)):
        for row in range(0, 64, rows):
            part = product(a[row : row + rows], b[:, :columns].copy())
            assert (part == whole[row : row + rows, :columns]).all()
