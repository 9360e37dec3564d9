"""Where kernels run: on a GPU if there is one, in every case; else in Triton's interpreter, the long cases with `--matrix` only."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda.masks import PinnedMasks
from nanoserve.kernels.experts.tuning import gate_up_row_tile
from nanoserve.kernels.linear.tuning import row_tile
from tests.triton_interpreter import REACHED

ON_GPU = torch.cuda.is_available()
UNWRITTEN = "(overflow|invalid value|All-NaN slice) encountered"
"""What numpy remarks where steps are filled up by what is computed of memory that nobody has written."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    left_out = set()
    for item in items:
        if ON_GPU or not item.path.is_relative_to(here):
            continue
        if item.path.parent.name != "kernels":
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{UNWRITTEN}:RuntimeWarning"))
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: run `make gpu` where there is one"))
        elif item.get_closest_marker("matrix") and not config.getoption("--matrix"):
            left_out.add(item)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module", autouse=True)
def _as_on_a_gpu(plain_products: None) -> None:
    """Kernels take plain weights."""


@pytest.fixture(scope="module", autouse=True)
def _few_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a kernel is not what is tested, a program computes more of what one row is multiplied with: an interpreted one is slow to begin."""
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU and request.path.parent.name != "kernels":
            patch.setattr("nanoserve.kernels.linear.tuning.row_tile", _more_rows(row_tile))
            patch.setattr("nanoserve.kernels.experts.tuning.gate_up_row_tile", _more_rows(gate_up_row_tile))
        yield


@pytest.fixture(scope="module", autouse=True)
def _masks_in_reach() -> Iterator[None]:
    """Kernels read them by addresses."""
    make, lock = PinnedMasks.__init__, PinnedMasks._lock

    def made(masks: PinnedMasks, **how: Any) -> None:
        make(masks, **how)
        REACHED.append(masks._host)

    def locked(masks: PinnedMasks, memory: memoryview) -> int:
        count = lock(masks, memory)
        REACHED.append(masks._theirs)
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PinnedMasks, "__init__", made)
        patch.setattr(PinnedMasks, "_lock", locked)
        yield


def _more_rows(tile_of: Callable[..., Any]) -> Callable[..., Any]:
    def tile(*sizes: Any, **options: Any) -> Any:
        found = tile_of(*sizes, **options)
        return found if getattr(found, "straight", False) else found._replace(rows=32)

    return tile
