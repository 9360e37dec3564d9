"""Over a real model: constrained answers follow their grammar, and free answers do not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.sampling import SamplingParams
from tests.fakes.finite_grammars import KIND, FiniteGrammars, TardyGrammars
from tests.served import Answer, Served
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model

EOS = 9
ANSWERS = ("11 12 13|11 12 14 15|16", "20 21 22 23 24 25 26|20 21 30 31 32 33 34 35 36 37")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama")


def served(
    tiny: TinyModel,
    asked: Mapping[str, str | None],
    *,
    depth: int,
    num_blocks: int = 200,
    is_tardy: bool = False,
    **sampling: Any,
) -> dict[str, Any]:
    """The answers by name, of requests with or without a language."""
    model = tiny.build()
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 64}
    crowd = Served(
        model,
        lambda limits: TorchRunner(model, limits),
        block_size=4,
        num_blocks=num_blocks,
        depth=depth,
        grammars=TardyGrammars(tiny.spec.vocab_size, ANSWERS)
        if is_tardy
        else FiniteGrammars(tiny.spec.vocab_size),
        **limits,
    )
    params = SamplingParams(temperature=1.5, max_tokens=16, logprobs=2, **sampling)
    for name, language in asked.items():
        seed = sum(map(ord, name))
        constraint = None if language is None else Constraint(KIND, language)
        prompt = make_prompt(3 + seed % 9, seed=seed)
        crowd.add(name, prompt, params, seed, eos_token_ids={EOS}, constraint=constraint)
    answers = {name: Answer() for name in asked}
    while crowd.engine.has_work:
        crowd.turn(answers)
    for answer in answers.values():
        assert [each.token_id for each in answer.logprobs] == answer.tokens
    assert is_tardy == bool(crowd.engine.state().late_masks)
    assert crowd.engine.state().preemptions <= (1 if is_tardy else 99), "of the prompt that ends a block"
    return {name: answer.tokens for name, answer in answers.items()}


@pytest.mark.parametrize(("depth", "num_blocks"), [(1, 200), (2, 200), (2, 16)])
def test_constrained_answers_obey_and_free_ones_do_not_change(
    tiny: TinyModel, depth: int, num_blocks: int
) -> None:
    free: dict[str, str | None] = dict.fromkeys(("f1", "f2", "f3"))
    bound: dict[str, str | None] = {f"b{number}": ANSWERS[number % 2] for number in range(12)}
    alone = served(tiny, free, depth=1)
    found = served(tiny, free | bound, depth=depth, num_blocks=num_blocks)
    assert {name: found[name] for name in free} == alone
    for name, language in bound.items():
        *answer, last = found[name]
        assert last == EOS
        assert language is not None
        assert " ".join(map(str, answer)) in language.split("|")
    assert len({tuple(found[name]) for name in bound}) > 2, "the model has a choice and makes use of it"


def test_the_same_answers_at_every_depth(tiny: TinyModel) -> None:
    asked: dict[str, str | None] = {"f": None, "b1": ANSWERS[0], "b2": ANSWERS[1]}
    assert served(tiny, asked, depth=1) == served(tiny, asked, depth=2) == served(tiny, asked, depth=3)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_same_answers_where_masks_are_late(tiny: TinyModel, depth: int, penalty: float) -> None:
    """A row that is not drawn has neither its token nor what penalties would count of it."""
    asked: dict[str, str | None] = {"f": None, "b1": ANSWERS[0], "b2": ANSWERS[1], "b3": ANSWERS[1]}
    found = served(tiny, asked, depth=depth, is_tardy=True, repetition_penalty=penalty)
    assert found == served(tiny, asked, depth=1, repetition_penalty=penalty)
    alone: dict[str, str | None] = {"b2": ANSWERS[1]}
    assert served(tiny, alone, depth=depth, is_tardy=True) == served(tiny, alone, depth=1)
