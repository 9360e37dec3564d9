"""A graph can be captured whatever the garbage collector would like to destroy meanwhile, and few rows' kernels have a larger cache in theirs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import FIRST_GRAPHS, Graphs, Key
from nanoserve.adapters.pytorch.garbage import no_garbage_collected
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.kernels.device.launch import SHARED
from tests.interpreter.gpu.serving import DEVICE
from tests.plans import SIZES
from tests.tiny_spec import TINY

ROUNDS = 40


class Grave:
    """Holds a captured graph, and itself, so that only the garbage collector can free either."""

    def __init__(self) -> None:
        self.itself = self
        self.memory = torch.zeros(1 << 20, device=DEVICE)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.memory += 1


@contextlib.contextmanager
def eager_collector() -> Iterator[None]:
    """The garbage collector runs at nearly every allocation."""
    usual = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@pytest.mark.gpu
def test_a_capture_outlives_graphs_that_become_garbage_in_the_middle_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_random_model(TINY, dtype=torch.bfloat16, device=DEVICE, seed=1)
    sizes = attrs.evolve(SIZES, max_num_seqs=64, max_num_batched_tokens=64, block_size=16, num_blocks=64)
    runner, _ = build_runner(model, sizes)
    captures = len([size for size in FIRST_GRAPHS if size <= sizes.max_num_seqs])
    graves = [Grave() for _ in range((captures + 2) * ROUNDS)]
    buried, decode = len(graves), ForwardLauncher.decode

    def littering(self: ForwardLauncher, *arguments: Any, **named: Any) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            graves.pop()
        return decode(self, *arguments, **named)

    monkeypatch.setattr(ForwardLauncher, "decode", littering)
    with eager_collector():
        for _ in range(ROUNDS):
            runner.rehearsal.prepare()
    torch.cuda.synchronize()
    assert len(graves) == buried - captures * ROUNDS


def test_the_collector_is_held_and_let_go_as_it_was_found() -> None:
    def fail_inside() -> None:
        with no_garbage_collected():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_garbage_collected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def preferred(graph: torch.cuda.CUDAGraph) -> list[int]:
    """Of each node of a graph that was kept, the percentage that it prefers, or -1 where it is no kernel."""
    driver, count, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), (ctypes.c_uint32 * 16)()
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    assert driver.cuGraphGetNodes(raw, None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(raw, nodes, ctypes.byref(count)) == 0
    read = driver.cuGraphKernelNodeGetAttribute
    return [-1 if read(ctypes.c_void_p(node), 14, value) else value[0] for node in nodes]


@pytest.mark.gpu
def test_a_graph_whose_kernels_prefer_a_larger_cache_computes_the_same() -> None:
    graphs, x, y = Graphs(most_cached=8), torch.zeros(4, device=DEVICE), torch.zeros(4, device=DEVICE)

    def launch() -> None:
        x.add_(1)
        y.copy_(x)

    launch()
    few, one = Key(2, 1, samples=True), Key(1, 1, samples=True)
    for key in (one, few):
        graphs.capture(key, launch)
        graphs.replay(key)
    assert y.tolist() == x.tolist() == [3.0] * 4
    assert preferred(graphs._graphs[few])[0] == SHARED
    with pytest.raises(RuntimeError, match="keep_graph"):
        graphs._graphs[one].raw_cuda_graph()


@pytest.mark.gpu
def test_weights_in_8_bits_have_few_rows_prefer_a_larger_cache_on_hopper() -> None:
    model = build_random_model(TINY, dtype=torch.bfloat16, device=DEVICE, seed=1, quantization="fp8")
    sizes = attrs.evolve(SIZES, max_num_seqs=8, max_num_batched_tokens=64, block_size=16, num_blocks=64)
    runner, _ = build_runner(model, sizes)
    graphs = runner._decoding._graphs
    assert graphs is not None
    (few,) = (graph for key, graph in graphs._graphs.items() if isinstance(key, Key) and key.places == 2)
    if torch.cuda.get_device_capability()[0] == 9:
        assert preferred(few).count(SHARED) > 4
