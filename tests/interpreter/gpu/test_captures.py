"""A graph can be captured whatever the garbage collector would like to destroy meanwhile."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import FIRST_GRAPHS
from nanoserve.adapters.pytorch.garbage import no_garbage_collected
from nanoserve.adapters.pytorch.models import build_random_model
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
