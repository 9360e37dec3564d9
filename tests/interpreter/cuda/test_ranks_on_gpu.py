"""Two ranks with the kernels of a GPU answer as transformers, and draw the same; they are threads, of which one computes at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.building import Partners, build_runner
from nanoserve.adapters.pytorch.cuda.ranks import exchange
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.parallel.communicator import Communicator
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import Chunk, StepPlan
from tests.interpreter.matrix import cases
from tests.plans import SIZES, Driver, admitted
from tests.served import is_greedy
from tests.triton_interpreter import REACHED
from tests.unit.adapters.pytorch.tiny_models import (
    CPU,
    GEMMA2,
    LATENT,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="its ranks share one memory without waiting"),
]
SIZE = 2
SMALL: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied and odd": ("llama", {**SMALL, "vocab_size": 67, "tie_word_embeddings": True, "mlp_bias": True}),
    "experts": ("mixtral", {}),
    "whole experts": (
        "deepseek_v3",
        {**LATENT, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": None},
    ),
    "norms after": ("gemma2", {**GEMMA2, "num_attention_heads": 4, "num_key_value_heads": 2}),
}


ALWAYS = [("tied and odd", False), ("whole experts", False)]


class Turns:
    """Lets one thread run at a time, from one exchange to the next."""

    def __init__(self) -> None:
        self._condition, self._current, self._ended = threading.Condition(), 0, set[int]()

    def pass_on(self, rank: int) -> None:
        with self._condition:
            if self._ended:
                return
            self._current = (rank + 1) % SIZE
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._current == rank or self._ended, 60)

    def run(self, rank: int, work: Callable[[int], Any]) -> Any:
        with self._condition:
            assert self._condition.wait_for(lambda: self._current == rank or self._ended, 60)
        try:
            return work(rank)
        finally:
            with self._condition:
                self._ended.add(rank)
                self._current = (rank + 1) % SIZE
                self._condition.notify_all()


@attrs.define
class SharedMemory:
    """One of two blocks in one process, which are there before a kernel begins."""

    rank: int
    turns: Turns
    board: dict[int, Tensor]
    own: Tensor
    addresses: list[int] = attrs.field(factory=list)
    waits: bool = False

    def meet(self, ranks: Communicator) -> None:
        self.board[self.rank] = self.own
        REACHED.append(self.own)
        self.turns.pass_on(self.rank)
        self.addresses = [self.board[rank].data_ptr() for rank in range(ranks.size)]


@attrs.define
class Seat:
    """A rank that exchanges nothing over the host."""

    rank: int
    size: int = SIZE

    def all_reduce(self, x: Tensor, /) -> Tensor:
        raise AssertionError

    def all_gather(self, x: Tensor, /) -> Tensor:
        raise AssertionError


def run_ranks(
    tiny: TinyModel,
    work: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    expert_parallel: bool = False,
    **options: Any,
) -> list[Any]:
    turns, board, current = Turns(), dict[int, Tensor](), threading.local()
    for name in ("add_ranks_into", "gather_ranks_into"):
        launch = getattr(exchange, name)

        def launch_in_turn(*arguments: Any, launch: Any = launch, **named: Any) -> None:
            turns.pass_on(current.rank)
            launch(*arguments, **named)

        monkeypatch.setattr(exchange, name, launch_in_turn)

    @torch.inference_mode()
    def compute(rank: int) -> Any:
        current.rank = rank
        torch.set_num_threads(1)
        how: dict[str, Any] = {"ranks": Seat(rank), "expert_parallel": expert_parallel}
        model = build_model(tiny.spec, str(tiny.folder), dtype=torch.float32, device=CPU, **how)
        partners = Partners(
            ranks=Seat(rank),
            make_memory=lambda size: SharedMemory(rank, turns, board, torch.zeros(size, dtype=torch.uint8)),
            meet=lambda sizes: None,
        )
        sizes = attrs.evolve(SIZES, block_size=16, vocab_size=tiny.spec.vocab_size)
        return work(Driver(build_runner(model, sizes, partners=partners, **options)[0]))

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(turns.run, range(SIZE), itertools.repeat(compute)))


@cases(
    ("name", "deterministic"),
    ALWAYS,
    also=[each for each in itertools.product(MODELS, (False, True)) if each not in ALWAYS],
)
def test_ranks_answer_as_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, deterministic: bool
) -> None:
    """A prompt, its row alone, another prompt beside it, both rows; then what no rank can do alone."""
    architecture, config = MODELS[name]
    tiny = make_tiny_model(tmp_path, architecture, **config)
    first, second = (make_prompt(size, vocab_size=tiny.spec.vocab_size, seed=size) for size in (11, 5))
    groups = len(tiny.spec.cache_groups)

    counted: list[Any] = []

    def answer(driver: Any) -> tuple[list[int], list[int]]:
        begin = admitted(1, first, *[[1, 2, 3]] * groups, temperature=0.0)
        driver.step(admitted=[begin], chunks=[Chunk(1, 0, 7, samples=False)])
        driver.step(chunks=[Chunk(1, 7, 4, samples=True)])
        driver.step(decoding=[1])
        begin = admitted(0, second, *[[4, 5]] * groups, temperature=0.0)
        driver.step(admitted=[begin], chunks=[Chunk(0, 0, 5, samples=True)], decoding=[1])
        driver.step(decoding=[0, 1])
        tokens = driver.of(0), driver.of(1)
        counted.append(driver.runner.counts().expert_tokens)
        ticket = driver.runner.submit(StepPlan(step=0))
        driver.runner._exchange.abandon()
        with pytest.raises(StepFailedError, match="the others were given up"):
            driver.runner.collect(ticket)
        with pytest.raises(StepFailedError, match="the others were given up"):
            driver.runner.submit(StepPlan(step=1))  # a rank that follows collects nothing
        driver.runner._exchange._words[0] = 0
        attempts: list[Any] = []

        def run_out(plan: Any) -> Any:
            attempts.append(plan)
            raise torch.OutOfMemoryError

        driver.runner._attempt = run_out
        with pytest.raises(StepFailedError, match="out of device memory"):
            driver.step(decoding=[0, 1])
        assert len(attempts) == 1
        return tokens

    whole = name == "whole experts"
    answers = run_ranks(tiny, answer, monkeypatch, deterministic=deterministic, expert_parallel=whole)
    assert answers[0] == answers[1]
    assert list(map(len, answers[0])) == [2, 4]
    assert counted[0] == counted[1]
    assert len(counted[0]) == (SIZE if whole else 0)
    for prompt, tokens in zip((second, first), answers[0], strict=True):
        assert is_greedy(tiny.reference, prompt, tokens)
