"""A GPU's runner over memory that is given back and had again answers as before, with the addresses that it was built with."""

from __future__ import annotations

from pathlib import Path

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.virtual_memory import VirtualMemory, virtual_memories
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.ports.steering import KV_CACHE, PARTS, WEIGHTS
from nanoserve.ports.step import Chunk
from tests.plans import SIZES, Driver, admitted
from tests.unit.adapters.pytorch.fake_driver import FakeDriver, FakeMemory
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPT = tuple(make_prompt(11))


def memories(*, bare: bool) -> dict[str, VirtualMemory]:
    if DEVICE.type == "cuda":
        found = virtual_memories(DEVICE, bare=bare)
        assert found is not None
        return found
    driver = FakeDriver()
    return {part: FakeMemory(driver, bare=bare) for part in PARTS}


def built(tiny: TinyModel, *, bare: bool) -> tuple[CudaRunner, ModelWeights]:
    found, folder = memories(bare=bare), str(tiny.folder)
    model = build_model(
        tiny.spec, folder, dtype=torch.float32, device=DEVICE, take=found[WEIGHTS].take, read=not bare
    )
    sizes = attrs.evolve(SIZES, block_size=16, max_model_len=48, vocab_size=tiny.spec.vocab_size)
    runner, _ = build_runner(model, sizes, take=found[KV_CACHE].take, beside=bare)
    return runner, ModelWeights(model, folder, None, memories=found)


def answer(runner: CudaRunner) -> list[int]:
    driver = Driver(runner)
    chunk = Chunk(0, 0, len(PROMPT), samples=True)
    driver.step(released=range(4), admitted=[admitted(0, PROMPT, (1,))], chunks=[chunk])
    driver.step(decoding=[0])
    return [token for result in driver.results for token in result.token_ids]


def test_it_answers_as_before_after_each_level_and_after_a_start_without_weights(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, num_hidden_layers=1)
    runner, weights = built(tiny, bare=False)
    wanted = answer(runner)
    parked, parked_weights = built(tiny, bare=True)
    answer(parked)  # of no weights, as a warm-up does
    for each, store, levels in ((runner, weights, (1, 2)), (parked, parked_weights, (1,))):
        for level in levels:
            store.sleep(level)
            for part in PARTS:
                store.wake(part)
            assert answer(each) == wanted
