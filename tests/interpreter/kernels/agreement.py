"""Whether what came of a case is what should have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from nanoserve.kernels.testing import Comparison


def agree(comparisons: Iterable[Comparison], rtol: float, atol: float | None = None) -> None:
    """Every one of them, of which there has to be one, element by element."""
    seen = 0
    for seen, (case, got, wanted, exact) in enumerate(comparisons, 1):  # noqa: B007 - counts them
        if exact:
            assert torch.equal(got, wanted.to(got.dtype)), case
        else:
            torch.testing.assert_close(
                got.float(), wanted.float(), rtol=rtol, atol=rtol if atol is None else atol, msg=_named(case)
            )
    assert seen


def _named(case: str) -> Callable[[str], str]:
    return lambda message: f"{case}: {message}"
