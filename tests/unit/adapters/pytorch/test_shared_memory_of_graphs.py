"""Which captured steps prefer a larger L1 cache, and what the driver is asked for then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda import graphs
from nanoserve.adapters.pytorch.cuda.graphs import Key, most_cached
from nanoserve.kernels.device.launch import LITTLE, SHARED, prefer_cache
from nanoserve.kernels.forms import FP8, MXFP4, PLAIN, Form, Int4, StoredWeight

GRAPH, SMALL, LARGEST, LARGE, COPY = (0x7F00_0000_1000 + each for each in range(5))
KERNEL, MEMCPY = 0, 1
NODES = {SMALL: (KERNEL, 0), COPY: (MEMCPY, 0), LARGE: (KERNEL, LITTLE + 16), LARGEST: (KERNEL, LITTLE)}
"""The kind and the bytes of shared memory of each node of the graph, by its address."""


class GraphDriver:
    """Knows one graph.

    Attributes:
        preferred: values of launch attributes, by node and number.
    """

    def __init__(self, code: int = 0) -> None:
        self._code = code
        self.preferred: dict[tuple[int, int], bytes] = {}

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - the driver's name
        if graph.value != GRAPH:
            return 1
        nodes[: len(NODES)] = list(NODES)
        count._obj.value = len(NODES)
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, launch: Any) -> int:  # noqa: N802 - as above
        kind, launch[8] = NODES.get(node.value, (MEMCPY, 0))
        return kind

    def cuGraphKernelNodeSetAttribute(self, node: Any, number: int, value: Any) -> int:  # noqa: N802 - as above
        if not self._code:
            self.preferred[node.value, number] = bytes(value)
        return self._code


def random_weight(form: Form, width: int) -> Tensor | StoredWeight:
    weight = torch.randn(16, width)
    return weight if form is PLAIN else StoredWeight(form, *form.quantize(weight))


def test_kernels_that_share_little_get_the_preference() -> None:
    driver = GraphDriver()
    prefer_cache(GRAPH, driver)
    value = bytes([SHARED, *[0] * 63])
    assert driver.preferred == {(SMALL, 14): value, (LARGEST, 14): value}


@pytest.mark.parametrize(("graph", "code"), [(GRAPH, 1), (GRAPH + 1, 0)])
def test_a_driver_that_refuses_changes_nothing(graph: int, code: int) -> None:
    driver = GraphDriver(code)
    prefer_cache(graph, driver)
    assert not driver.preferred


@pytest.mark.parametrize(
    ("forms", "width", "expected"),
    [
        ([PLAIN, FP8()], 2048, 8),
        ([PLAIN, Int4()], 3072, 16),
        ([Int4(), FP8()], 4096, 16),
        ([PLAIN, Int4()], 2048, 0),
        ([MXFP4(), PLAIN], 4096, 0),
        ([], 4096, 0),
    ],
    ids=str,
)
def test_few_rows_prefer_it_where_words_go_straight_into_registers(
    forms: list[Form], width: int, expected: int
) -> None:
    weights = [random_weight(form, width) for form in forms]
    assert most_cached(weights) == expected


class Captured:
    """In place of torch's graph; `log` has whether it was kept, and then each call."""

    def __init__(self, log: list[object], keep_graph: bool) -> None:
        self.log, self.raw_cuda_graph = log, lambda: GRAPH
        log.append(keep_graph)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda **_: self.log.append(name)


@pytest.mark.parametrize(
    ("key", "prefers"),
    [
        (Key(2, 8, samples=True), True),
        (Key(16, 1, samples=False), True),
        (Key(16, 1, samples=False, adapted=True), False),
        (Key(4, 1, samples=True, width=4), True),
        (Key(1, 1, samples=True), False),
        (Key(24, 1, samples=True), False),
        (Key(4, 1, samples=True, width=8), False),
        (Key(8, 1, samples=False, invariant=True), False),
        (("a step with chunks", 2), False),
    ],
    ids=str,
)
def test_a_graph_is_instantiated_when_its_kernels_know(
    key: Hashable, prefers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[object] = []
    stream = contextlib.nullcontext()
    stream.wait_stream = lambda _: None  # type: ignore[attr-defined]
    for name in ("Stream", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: Captured(log, keep_graph))
    monkeypatch.setattr(graphs, "prefer_cache", log.append)
    graphs.Graphs(most_cached=16).capture(key, lambda: log.append("launched"))
    captured = [prefers, "capture_begin", "launched", "capture_end"]
    assert log == captured + [GRAPH, "instantiate"] * prefers
