"""Requests that ask for it get the bits of an engine that is deterministic throughout, beside others and whatever is decoded meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda import building, windows
from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.models import DecoderModel, build_random_model
from nanoserve.domain.scheduling import verification
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.served import Answer, Served
from tests.tiny_spec import tiny_spec
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

TOKENS = 24 if ON_GPU else 6
PARAMS = [
    SamplingParams(temperature=0.0, logprobs=1, max_tokens=TOKENS),
    SamplingParams(
        temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.5, logprobs=1, max_tokens=TOKENS
    ),
    SamplingParams(temperature=1.0, max_tokens=TOKENS, logprobs=1, prompt_logprobs=1),
    SamplingParams(temperature=1.0, min_tokens=5, stop_token_ids=range(50), max_tokens=5, logprobs=1),
    SamplingParams(temperature=1.0, max_tokens=1, logprobs=0),
]
ASKING = [attrs.evolve(each, deterministic=True) for each in PARAMS]
FAMILIES = ("llama", "gemma3_text", "mistral", "qwen3_moe", "deepseek_v3", "qwen3_next")


class Unsteady:
    """A runner that says another token now and then in steps that are not invariant, as kernels do that round otherwise."""

    def __init__(self, runner: CudaRunner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> CudaTicket:
        ticket, arena = self._runner.submit(plan), self._runner._arena
        for row in plan.decoding if plan.step % 4 == 0 and not plan.invariant else ():
            newest = arena.tokens[row, int(arena.lengths[row]) - 1]
            newest.copy_((newest + 1) % 97)
        return ticket


@pytest.fixture(autouse=True)
def _without_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU half of an engine's start is its self-test, which has tests of its own."""
    for name in ("rehearse_checks", "check_kernels"):
        monkeypatch.setattr(building, name, lambda _: None)


@pytest.fixture(autouse=True)
def _with_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All count as long: of such rows, those that ask are verified unless most do."""
    monkeypatch.setattr(verification, "SHORT", 0)


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **CASES[request.param])


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build(device=DEVICE, dtype=torch.bfloat16 if ON_GPU else torch.float32)


def unsteady(model: DecoderModel, **settings: Any) -> Served:
    def make(limits: Limits) -> Any:
        return Unsteady(build_runner(model, limits)[0])

    return Served(model, make, invariant_decoding=True, **settings)


@contextlib.contextmanager
def sending_nothing(_threads: int) -> Iterator[None]:
    """As where kernels are only compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uploads, "scatter", lambda *_: None)
        yield


def prompts_of(model: DecoderModel, count: int) -> list[list[int]]:
    vocab_size = model.spec.vocab_size
    shared = make_prompt(9, vocab_size=vocab_size, seed=9)
    tails = [make_prompt(3 + number, vocab_size=vocab_size, seed=number) for number in range(count)]
    return [[*(shared if number % 2 else ()), *tail] for number, tail in enumerate(tails)]


def test_bits_are_those_of_a_deterministic_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_random_model(tiny_spec(1), dtype=torch.float32, device=DEVICE, seed=3)
    prompts, asking = prompts_of(model, 3), [ASKING[1], PARAMS[0], PARAMS[2]]
    wanted = serve(model, deterministic=True, block_size=4).answers(prompts[:1], asking[:1])
    engine = unsteady(model, block_size=4, depth=2, most_unverified=3)
    monkeypatch.setattr(windows, "compiling_ahead", sending_nothing)
    runner: Any = engine.engine._runner
    runner._windows.is_ready = False
    assert engine.answers(prompts, asking)[:1] == wanted
    counters = engine.engine.scheduler.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens


@pytest.mark.matrix
@pytest.mark.parametrize("tiny", FAMILIES, indirect=True)
def test_bits_do_not_change_in_a_crowd_that_is_preempted_and_left(model: DecoderModel) -> None:
    prompts = prompts_of(model, len(PARAMS))
    limits: dict[str, Any] = {"block_size": 4, "max_model_len": 40, "max_num_seqs": 4}
    expected = serve(model, deterministic=True, **limits).answers(prompts, ASKING)
    engine = unsteady(model, num_blocks=11, depth=2, most_unverified=4, **limits)
    for asking in ({1}, {0, 1, 3, 4}):  # the second time prefixes are found, and all steps are invariant
        asks = [number in asking for number in range(len(prompts))]
        params = [(ASKING if each else PARAMS)[number] for number, each in enumerate(asks)]
        gone = {"gone": Answer()}
        engine.add("gone", prompts[1], (ASKING if asks[0] else PARAMS)[1], 77)
        for _ in range(4):
            engine.turn(gone)
        engine.engine.abort("gone")
        engine.turn(gone)
        for asked, one, other in zip(asks, engine.answers(prompts, params), expected, strict=True):
            assert one == other or not asked
    counters = engine.engine.scheduler.counters
    if not engine.engine.scheduler.cache.has_states:
        assert counters.draft_tokens > 0
        assert counters.accepted_tokens < counters.draft_tokens or not ON_GPU
    assert engine.has_preempted
    assert engine.engine.state(count_leaks=True).leaked_blocks == 0
