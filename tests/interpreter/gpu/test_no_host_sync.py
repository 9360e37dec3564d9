"""No step of any family waits for the device: torch refuses each operation that would, while steps are submitted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, serve
from tests.interpreter.gpu.test_engine_on_gpu import FAMILIES
from tests.unit.adapters.pytorch.tiny_models import make_prompt, make_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # once in a process
]
DRAWN = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, top_k=9, top_p=0.7, max_tokens=12, ignore_eos=True),
]
LENGTHS = (3, 17, 40, 64, 90, 5)
"""Of prompts that come whole, in chunks, and beside rows that decode."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    architecture, config = FAMILIES[request.param]
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config).build(device=DEVICE)


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """Of every step, what torch's "error" mode raised; the engine would try once more without a word."""
    seen: list[Exception | None] = []
    submit = CudaRunner.submit

    def strict(self: CudaRunner, plan: Any, /) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            ticket = submit(self, plan)
        except Exception as error:
            seen.append(error)
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seen.append(None)
        return ticket

    monkeypatch.setattr(CudaRunner, "submit", strict)
    return seen


def test_torch_refuses_what_waits() -> None:
    """So that the others can fail."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.zeros(1, device=DEVICE).item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "kernel by kernel"])
def test_no_step_waits_for_the_device(
    model: DecoderModel, submissions: list[Exception | None], eager: bool
) -> None:
    prompts = [make_prompt(length, vocab_size=model.spec.vocab_size, seed=length) for length in LENGTHS]
    served = serve(model, enforce_eager=eager, depth=2, max_num_seqs=4, max_num_batched_tokens=64)
    drawn = [DRAWN[number % 2] for number in range(len(prompts))]
    first = served.texts(prompts, drawn)
    again = served.texts(prompts, drawn)  # prefixes are reused
    assert [len(each) for each in first] == [len(each) for each in again] == [12] * len(prompts)
    assert [error for error in submissions if error is not None] == []
    assert len(submissions) > 24
