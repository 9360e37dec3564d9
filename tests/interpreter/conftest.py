"""Where kernels run: on a GPU if there is one, in every case; else in Triton's interpreter, the long cases with `--matrix` only."""

from __future__ import annotations

import pathlib

import pytest
import torch

ON_GPU = torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    left_out = []
    for item in items:
        if ON_GPU or not item.path.is_relative_to(here):
            continue
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: run `make gpu` where there is one"))
        elif item.get_closest_marker("matrix") and not config.getoption("--matrix"):
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="module", autouse=True)
def _as_on_a_gpu(plain_products: None) -> None:
    """Kernels take plain weights."""
