"""What a kernel may reach where it is interpreted: every element of its tensors, and nothing beside them, however many it reaches at once."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU"
)
SIZE = 8


@triton.jit
def copy_kernel(target_ptr, source_ptr, other_ptr, start, num_others, num_elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917 - Triton's language
    places = tl.arange(0, BLOCK)
    pointers = tl.where(places < num_others, other_ptr + places, source_ptr + start + places)
    tl.store(target_ptr + places, tl.load(pointers, mask=places < num_elements), mask=places < num_elements)


def copied(start: int, *, others: int = 0, elements: int = SIZE) -> torch.Tensor:
    target, source = torch.full((SIZE,), -1.0), torch.arange(float(SIZE))
    copy_kernel[(1,)](target, source, 100 + torch.arange(float(SIZE)), start, others, elements, BLOCK=SIZE)
    return target


def test_all_elements_of_its_tensors_are_reached() -> None:
    assert copied(0).tolist() == [*range(SIZE)]
    assert copied(0, others=3).tolist() == [100, 101, 102, *range(3, SIZE)]


def test_what_is_masked_out_may_lie_anywhere() -> None:
    assert copied(3, elements=SIZE - 3).tolist() == [*range(3, SIZE), -1, -1, -1]
    assert copied(1 << 30, elements=0).tolist() == [-1] * SIZE


@pytest.mark.parametrize(
    ("start", "others", "outside"),
    [(1, 0, 1), (-1, 0, 1), (SIZE, 0, SIZE), (2, 3, 2), (1 << 30, 3, SIZE - 3)],
)
def test_elements_beside_them_are_refused(start: int, others: int, outside: int) -> None:
    with pytest.raises(InterpreterError, match=f"{outside} elements lie in no tensor of this launch"):
        copied(start, others=others)


def test_a_launch_leaves_the_language_as_it_was() -> None:
    before = dict(vars(tl)), dict(vars(tl.tensor))
    copied(0)
    assert (dict(vars(tl)), dict(vars(tl.tensor))) == before
