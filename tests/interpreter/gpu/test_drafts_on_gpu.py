"""Answers over the GPU's runner are those without drafts, whatever drafts and however much is right, token for token in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import GIVEN, Arena
from nanoserve.adapters.pytorch.cuda.building import build_runner, by_ngrams
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.kernels.ngrams import reference
from nanoserve.ports.driven import Drafter
from nanoserve.ports.sampling import SamplingParams
from tests.drafted_draws import SIZES, check_frequencies, make_indifferent_model
from tests.fakes.finite_grammars import FiniteGrammars, TardyGrammars
from tests.fakes.scripted_drafter import knowing
from tests.interpreter.gpu.serving import DEVICE, ON_GPU
from tests.interpreter.matrix import cases
from tests.poisoned import same
from tests.served import Served
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

VOCAB = 128
TOKENS = 40 if ON_GPU else 7
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=TOKENS),
    SamplingParams(temperature=1.0, max_tokens=TOKENS - 1),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=TOKENS - 2, logprobs=2),
    SamplingParams(
        temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.4, logprobs=0, max_tokens=TOKENS - 2
    ),
    SamplingParams(temperature=0.8, logit_bias={5: 3.0}, max_tokens=TOKENS - 1),
    SamplingParams(temperature=1.0, min_tokens=TOKENS, stop_token_ids=range(50), max_tokens=TOKENS),
]
PLAIN = PARAMS[:2]
SHARED = make_prompt(9, vocab_size=VOCAB, seed=99)
Drafting = Callable[[Arena], Callable[..., None]]


def by(drafter: Drafter) -> Drafting:
    """A drafter of the host as one of the device, which waits for it."""

    def drafting(arena: Arena) -> Callable[..., None]:
        def propose(*, batch_rows: Tensor, width: int, pdl: bool, splits: int) -> None:
            del pdl, splits
            for row in batch_rows.tolist():
                length = int(arena.lengths[row])
                known = arena.tokens[row, :length].tolist()
                if int(arena.takes_drafts[row]) == GIVEN:
                    continue
                drafts = drafter.propose(known, width - 1) if int(arena.takes_drafts[row]) else ()
                padded = [*drafts, *[-1] * (width - 1)][: width - 1]
                arena.tokens[row, length : length + width - 1] = torch.tensor(padded, dtype=torch.int32)

        return propose

    return drafting


def serve(
    model: DecoderModel, drafting: Drafting = by_ngrams, *, deterministic: bool = False, **limits: Any
) -> Served:
    def make_runner(sizes: Limits) -> CudaRunner:
        return build_runner(
            model,
            sizes,
            deterministic=deterministic,
            enforce_eager=drafting is not by_ngrams,
            drafter=drafting,
        )[0]

    return Served(model, make_runner, **{"max_num_seqs": 8, "num_blocks": 40, "max_model_len": 64} | limits)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    return lambda kind: make_tiny_model(tmp_path_factory.mktemp("model"), kind, **CASES[kind])


@pytest.fixture(scope="module")
def model(make: Callable[[str], TinyModel]) -> DecoderModel:
    return make("llama").build(device=DEVICE)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Some repeat themselves."""
    return [
        make_prompt(3 + number, vocab_size=VOCAB, seed=number) * (1 + number % 2)
        for number in range(len(PARAMS))
    ]


@cases(("width", "depth", "acceptance"), [(4, 2, 0.5)], also=[(2, 1, 0.5), (8, 2, 0.9), (4, 2, 0.0)])
def test_answers_are_those_without_drafts(
    model: DecoderModel, prompts: list[list[int]], width: int, depth: int, acceptance: float
) -> None:
    without = serve(model).answers(prompts, PARAMS)
    for drafting in (by(knowing(prompts, without, acceptance, vocab_size=VOCAB)), by_ngrams):
        served = serve(
            model,
            drafting,
            depth=depth,
            max_width=width,
            num_blocks=60 if ON_GPU else 5,
            max_num_batched_tokens=41,
        )
        for one, other in zip(served.answers(prompts, PARAMS), without, strict=True):
            same(one, other)
        counters = served.engine.scheduler.counters
        assert counters.draft_tokens >= counters.accepted_tokens
        assert counters.accepted_tokens or drafting is by_ngrams or not acceptance


@pytest.mark.parametrize("more", [{}, {"presence_penalty": 0.9, "min_tokens": 6, "stop_token_ids": (3,)}])
def test_a_row_gains_what_is_right(
    model: DecoderModel, prompts: list[list[int]], more: dict[str, Any]
) -> None:
    params = [SamplingParams(temperature=1.0, max_tokens=8, **more)]
    without = serve(model).answers(prompts[:1], params)
    # The first token follows the prompt; of seven more, steps of up to four have one that is no draft.
    for acceptance, *counts in ((0.0, 0, 3 * 4 + 2 + 1, 6), (1.0, 5, 5, 2)):
        served = serve(model, by(knowing(prompts[:1], without, acceptance, vocab_size=VOCAB)), max_width=4)
        assert served.answers(prompts[:1], params) == without
        counters = served.engine.scheduler.counters
        assert [counters.accepted_tokens, counters.draft_tokens, counters.drafted_rows] == counts


@cases("kind", ["gpt_oss", "deepseek_v3"], also=["gemma3_text", "mistral", "qwen3_moe"])
def test_windows_sinks_experts_and_latents(
    make: Callable[[str], TinyModel], prompts: list[list[int]], kind: str
) -> None:
    model = make(kind).build(device=DEVICE)
    without = serve(model).answers(prompts[:2], PLAIN)
    served = serve(model, by(knowing(prompts[:2], without, 0.7, vocab_size=VOCAB)), max_width=4, depth=2)
    assert served.texts(prompts[:2], PLAIN) == [each.tokens for each in without]
    assert served.engine.scheduler.counters.accepted_tokens


def test_in_deterministic_mode_all_bits_are_those_without_drafts(
    model: DecoderModel, prompts: list[list[int]]
) -> None:
    scored = [attrs.evolve(each, logprobs=2, max_tokens=5) for each in PLAIN]
    without = serve(model, deterministic=True).answers(prompts[:2], scored)
    drafting = by(knowing(prompts[:2], without, 0.7, vocab_size=VOCAB))
    served = serve(model, drafting, deterministic=True, max_width=4, depth=2)
    assert served.answers(prompts[:2], scored) == without
    assert served.engine.scheduler.counters.accepted_tokens


BOUND = ["5 6 7 8 9 10", "|".join(f"20 21 {each} 22 23 {each}" for each in range(30, 60)), ""]


@cases(("depth", "is_tardy"), [(2, False)], also=[(1, False), (2, True)])
def test_answers_with_grammars_are_those_without_drafts(
    model: DecoderModel, prompts: list[list[int]], depth: int, is_tardy: bool
) -> None:
    def grammars() -> FiniteGrammars:
        made = TardyGrammars(VOCAB, BOUND[:2]) if is_tardy else FiniteGrammars(VOCAB)
        made.ends = frozenset({1})
        return made

    asked = (prompts[:3], [attrs.evolve(PARAMS[number], max_tokens=8) for number in (1, 2, 4)], BOUND)
    without = serve(model, grammars=grammars()).bound(*asked)
    served = serve(model, depth=depth, max_width=4, grammars=grammars())
    for one, other in zip(served.bound(*asked), without, strict=True):
        same(one, other)
        assert one.finish_reason is other.finish_reason
    assert without[0].tokens[:6] == [5, 6, 7, 8, 9, 10]
    assert served.engine.scheduler.counters.accepted_tokens >= 4


@cases(
    ("deterministic", "acceptance"),
    [(False, 0.6)],
    also=[(True, 0.6), (False, 0.0), (False, 1.0), (True, 0.9)],
)
def test_states_are_those_of_the_tokens_that_count(
    make: Callable[[str], TinyModel],
    prompts: list[list[int]],
    deterministic: bool,
    acceptance: float,
) -> None:
    chosen = range(len(PARAMS)) if ON_GPU else (0, 2)
    asked = [[*SHARED, *prompts[each]] for each in chosen], [PARAMS[each] for each in chosen]
    model = make("qwen3_next").build(device=DEVICE)
    without = serve(model, deterministic=deterministic).answers(*asked)
    drafting = by(knowing(asked[0], without, acceptance, vocab_size=VOCAB))
    how: dict[str, Any] = {"deterministic": deterministic, "max_width": 4, "depth": 2, "block_size": 4}
    for each in (drafting, by_ngrams) if ON_GPU else (drafting,):  # those of the device in graphs
        served = serve(model, each, **how, num_blocks=70 if ON_GPU else 7, max_num_batched_tokens=41)
        for _ in range(2):  # the second time prompts are found in the cache
            for one, other in zip(served.answers(*asked), without, strict=True):
                same(one, other)
        counters = served.engine.scheduler.counters
        assert counters.draft_tokens
        assert bool(counters.accepted_tokens) is bool(acceptance) or each is by_ngrams
        assert counters.preemptions
        assert counters.computed_prompt_tokens < 2 * sum(map(len, asked[0]))


def test_the_device_and_the_host_search_alike() -> None:
    dice, host = random.Random(0), NGramDrafter()
    for _ in range(300):
        tokens = [dice.randrange(3) for _ in range(dice.randint(1, 30))]
        assert reference.propose(tokens, 5) == list(host.propose(tokens, 5))


@pytest.mark.skipif(not ON_GPU, reason="a million draws by interpreted kernels take a day")
def test_tokens_are_as_frequent_as_without_drafts() -> None:
    check_frequencies(build_runner(make_indifferent_model(DEVICE), SIZES)[0], 1_000_000)
