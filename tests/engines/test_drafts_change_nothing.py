"""Answers over real models are those without drafts, whatever drafts and however much is right, token for token in float32."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.huggingface.draft_head import read_draft
from nanoserve.adapters.pytorch.draft_model import ModelDrafts
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.ports.driven import Drafter
from nanoserve.ports.sampling import SamplingParams
from tests.drafted_draws import SIZES, check_frequencies, make_indifferent_model
from tests.fakes import scripted_drafter
from tests.fakes.finite_grammars import FiniteGrammars, TardyGrammars
from tests.poisoned import PoisonedEngine, same
from tests.served import Answer
from tests.unit.adapters.pytorch.tiny_models import CASES, CPU, TinyModel, make_prompt, make_tiny_model

KINDS = ("llama", "gemma3_text", "gpt_oss", "mistral", "qwen3_moe", "deepseek_v3", "qwen3_next")
"""Dense, windows beside full attention, windows with sinks and experts, windows alone, experts, latents, states beside full attention."""
VOCAB = 128
knowing = functools.partial(scripted_drafter.knowing, vocab_size=VOCAB)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=28),
    SamplingParams(temperature=1.0, max_tokens=26),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=22, logprobs=2),
    SamplingParams(temperature=0.8, top_k=9, min_p=0.05, logit_bias={5: 3.0}, max_tokens=23),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, max_tokens=22),
    SamplingParams(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.3, max_tokens=22, logprobs=0),
    SamplingParams(temperature=0.7, allowed_token_ids=range(40), max_tokens=25),
    SamplingParams(temperature=0.0, max_tokens=1),
    SamplingParams(
        temperature=1.0, min_tokens=20, stop_token_ids=range(50), max_tokens=20, prompt_logprobs=1
    ),
    SamplingParams(temperature=0.0, logprobs=1, max_tokens=24),
]


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **CASES[request.param])


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Some of one beginning, and some that repeat themselves."""
    shared = make_prompt(13, vocab_size=VOCAB, seed=9)
    return [
        [*(shared if number % 3 else ()), *make_prompt(4 + number, vocab_size=VOCAB, seed=number % 4)]
        * (1 + number % 2)
        for number in range(len(PARAMS))
    ]


@pytest.fixture(scope="module")
def without(model: DecoderModel, prompts: list[list[int]]) -> list[Answer]:
    return PoisonedEngine(model, block_size=4).answers(prompts, PARAMS)


DRAFTERS: list[tuple[int, int, Callable[[list[list[int]], list[Answer]], Drafter]]] = [
    (2, 2, functools.partial(knowing, acceptance=1.0)),
    (4, 1, functools.partial(knowing, acceptance=0.6)),
    (8, 2, lambda prompts, answers: NGramDrafter()),
]
"""Each with a width and a depth."""


@pytest.mark.parametrize(("width", "depth", "make"), DRAFTERS)
def test_answers_are_those_without_drafts(
    model: DecoderModel, prompts: list[list[int]], without: list[Answer], *, width: int, depth: int, make: Any
) -> None:
    drafter = make(prompts, without)
    windows_alone = all(group.window for group in model.spec.cache_groups)
    engine = PoisonedEngine(
        model,
        drafter=drafter,
        block_size=4,
        num_blocks=15 if windows_alone else 32,
        depth=depth,
        max_width=width,
        max_num_seqs=5,
        max_num_batched_tokens=41,
    )
    answers = {"gone": Answer()}
    engine.add("gone", prompts[0], PARAMS[1], 77)
    for _ in range(6):
        engine.turn(answers)
    engine.engine.abort("gone")
    engine.turn(answers)
    for one, other in zip(engine.answers(prompts, PARAMS), without, strict=True):
        same(one, other)
        assert len(one.prompt_logprobs) == len(other.prompt_logprobs)
    counters = engine.engine.scheduler.counters
    assert counters.draft_tokens >= counters.accepted_tokens
    assert counters.draft_tokens >= counters.drafted_rows >= counters.accepted_tokens / (width - 1)
    assert counters.accepted_tokens or isinstance(drafter, NGramDrafter)
    assert engine.has_preempted or windows_alone


@pytest.mark.parametrize("tiny", ["llama"], indirect=True)
def test_rows_whose_draws_depend_on_those_before_have_drafts(
    model: DecoderModel, prompts: list[list[int]], without: list[Answer]
) -> None:
    for number in (4, 5, 8):
        drafter = knowing(prompts[number : number + 1], without[number : number + 1], 1.0)
        engine = PoisonedEngine(model, drafter=drafter, block_size=4, max_width=8)
        (answer,) = engine.answers(
            prompts[number : number + 1], PARAMS[number : number + 1], first_seed=number
        )
        same(answer, without[number])
        assert engine.engine.scheduler.counters.accepted_tokens > len(without[number].tokens) // 2


@pytest.mark.parametrize("tiny", ["llama", "mistral"], indirect=True)
def test_in_deterministic_mode_all_bits_are_those_without_drafts(
    tiny: TinyModel, prompts: list[list[int]]
) -> None:
    model = tiny.build(dtype=torch.bfloat16)
    model.is_invariant = True
    serve = functools.partial(PoisonedEngine, model, block_size=4)
    params = [SamplingParams(temperature=each % 2, max_tokens=22, logprobs=2) for each in range(6)]
    without = serve().answers(prompts[:6], params)
    drafted = serve(drafter=knowing(prompts[:6], without, 0.8), max_width=4, depth=2)
    assert drafted.answers(prompts[:6], params) == without
    assert drafted.engine.scheduler.counters.accepted_tokens


BOUND = ["5 6 7 8 9 10 11 12", "|".join(f"20 21 {each} 22 23 {each} 24" for each in range(30, 60)), ""]


@pytest.mark.parametrize(
    ("tiny", "grammars"),
    [
        ("llama", FiniteGrammars),
        ("llama", lambda vocab, ends: tardy(vocab, ends, BOUND[:2])),
        ("mistral", lambda vocab, ends: tardy(vocab, ends, BOUND[:2])),
        ("deepseek_v3", FiniteGrammars),
    ],
    indirect=["tiny"],
)
def test_answers_with_grammars_are_those_without_drafts(
    model: DecoderModel, prompts: list[list[int]], grammars: Callable[..., FiniteGrammars]
) -> None:
    params = [attrs.evolve(PARAMS[number], max_tokens=20) for number in (0, 1, 2, 3, 4, 9)]
    asked = (prompts[:6], params, BOUND * 2)
    without = PoisonedEngine(model, block_size=4, grammars=grammars(VOCAB, END)).bound(*asked)
    for width, depth in ((4, 2), (8, 1)):
        engine = PoisonedEngine(
            model,
            drafter=NGramDrafter(),
            grammars=grammars(VOCAB, END),
            block_size=4,
            num_blocks=40,
            depth=depth,
            max_width=width,
        )
        for one, other in zip(engine.bound(*asked), without, strict=True):
            same(one, other)
            assert one.finish_reason is other.finish_reason
        assert engine.engine.scheduler.counters.accepted_tokens > 5
        assert without[0].tokens == [5, 6, 7, 8, 9, 10, 11, 12, 1]


END = frozenset({1})


@pytest.mark.parametrize(
    ("tiny", "depth", "filled"),
    [("llama", 1, VOCAB), ("mistral", 2, VOCAB - 28), ("deepseek_v3", 2, VOCAB + 20)],
    indirect=["tiny"],
)
def test_a_model_that_drafts_for_itself_is_always_right_and_one_that_is_not_changes_nothing(  # noqa: PLR0917 - fixtures and cases
    tiny: TinyModel, prompts: list[list[int]], without: list[Answer], tmp_path: Path, depth: int, filled: int
) -> None:
    """The other one's vocabulary is filled up to another size, and as many numbers of a token are those of fewer, larger heads."""
    shape = {"vocab_size": filled, "num_key_value_heads": 1, "head_dim": 32}
    other = make_tiny_model(tmp_path, "llama", seed=1, **CASES["llama"], **shape)
    for small in (tiny, other):
        (small.folder / "tokenizer.json").write_text("{}")
        draft = read_draft(str(small.folder), tiny.spec, str(tiny.folder))
        spec = attrs.evolve(tiny.spec, draft=draft)
        drafted = build_model(
            spec, str(tiny.folder), dtype=torch.float32, device=CPU, draft=str(small.folder)
        )
        alone = PoisonedEngine(drafted, block_size=4, max_width=4, depth=depth)
        for number in (0, 1, 2):
            (answer,) = alone.answers(prompts[number:][:1], PARAMS[number:][:1], first_seed=number)
            same(answer, without[number])
            (answer,) = alone.answers(prompts[number:][:1], PARAMS[number:][:1], first_seed=number)
            same(answer, without[number])
        counters = alone.engine.scheduler.counters
        assert small is other or counters.accepted_tokens == counters.draft_tokens > 100
        crowd = PoisonedEngine(
            drafted,
            block_size=4,
            num_blocks=20,
            max_width=4,
            depth=depth,
            max_num_seqs=5,
            max_num_batched_tokens=41,
        )
        for _ in range(2):  # their prefixes are found then
            for one, wanted in zip(crowd.answers(prompts, PARAMS), without, strict=True):
                same(one, wanted)
        assert crowd.engine.state(count_leaks=True).leaked_blocks == 0


@pytest.mark.parametrize("tiny", ["llama"], indirect=True)
def test_drafts_are_what_the_small_model_says_behind_rejected_ones(
    tiny: TinyModel, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_tiny_model(tmp_path, "llama", seed=1, **CASES["llama"])
    spec = attrs.evolve(tiny.spec, draft=read_draft(str(small.folder), tiny.spec))
    drafted = build_model(spec, str(tiny.folder), dtype=torch.float32, device=CPU, draft=str(small.folder))
    made: list[tuple[list[int], list[int]]] = []

    def propose(self: ModelDrafts, most: Mapping[int, int]) -> dict[int, list[int]]:
        known = {row: list(self._rows.token_ids(row)) for row in most}
        found = proposing(self, most)
        made.extend((known[row], guesses) for row, guesses in found.items())
        return found

    proposing = ModelDrafts.propose
    monkeypatch.setattr(ModelDrafts, "propose", propose)
    cramped: dict[str, Any] = {"num_blocks": 20, "max_num_seqs": 5, "max_num_batched_tokens": 41}
    engine = PoisonedEngine(drafted, block_size=4, max_width=4, depth=2, **cramped)
    engine.answers(prompts, [PARAMS[0]] * len(prompts))
    assert engine.engine.scheduler.counters.preemptions > 0
    counters = engine.engine.scheduler.counters
    assert counters.draft_tokens - counters.accepted_tokens > 50
    for known, guesses in made:
        logits = small.expected([*known, *guesses])["logits"]
        assert logits[len(known) - 1 : -1].argmax(-1).tolist() == guesses


def tardy(vocab: int, ends: frozenset[int], texts: Sequence[str]) -> TardyGrammars:
    """Each of these is late at times."""
    grammars = TardyGrammars(vocab, texts)
    grammars.ends = ends
    return grammars


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_tokens_are_as_frequent_as_without_drafts(count: int, plain_products: None) -> None:
    model = make_indifferent_model(torch.device("cpu"))
    check_frequencies(TorchRunner(model, SIZES, NGramDrafter()), count)


@pytest.mark.parametrize("rounds", [1, pytest.param(17, marks=pytest.mark.slow)])
def test_many_prompts_in_engines_of_every_kind_say_what_they_say_without_drafts(
    model: DecoderModel, rounds: int
) -> None:
    """A thousand, of all kinds of caches together, where it is slow: widths, depths, preemption, offload and acceptance by chance."""
    dice = random.Random(rounds)
    groups = model.spec.cache_groups
    offloads = len(groups) == 1 and groups[0].window is None
    for number in range(rounds):
        prompts = [
            make_prompt(dice.randint(3, 30), vocab_size=VOCAB, seed=dice.randrange(99)) for _ in PARAMS
        ]
        without = PoisonedEngine(model, block_size=4).answers(prompts, PARAMS, first_seed=100 * number)
        engine = PoisonedEngine(
            model,
            drafter=knowing(prompts, without, dice.choice((0.0, 0.5, 0.9, 1.0))),
            block_size=4,
            num_blocks=dice.choice((32, 60)),
            depth=dice.randint(1, 3),
            max_width=dice.choice((2, 4, 8)),
            max_num_seqs=dice.choice((3, 6)),
            host_slots=dice.choice((0, 40)) if offloads else 0,
            min_offload_tokens=4,
        )
        for _ in range(2):  # their prefixes are found then
            answers = engine.answers(prompts, PARAMS, first_seed=100 * number)
            for one, other in zip(answers, without, strict=True):
                same(one, other)
        assert engine.engine.state(count_leaks=True).leaked_blocks == 0
