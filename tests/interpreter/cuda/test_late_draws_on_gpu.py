"""Rows that follow a grammar, over the GPU's runner: they obey it, and their free neighbours do not notice."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.masks import PinnedMasks
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws, most_masks
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.cuda.transfers import Arrivals
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.grammar import MOST_DRAFTED, Constraint
from nanoserve.ports.sampling import SamplingParams
from tests.fakes.finite_grammars import (
    KIND,
    FiniteGrammars,
    SeatedGrammars,
    SlowlyCompiledGrammars,
    TardyGrammars,
)
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.served import Answer, Served
from tests.tiny_spec import TINY
from tests.unit.domain.world import VOCAB, World

EOS = 9
LANGUAGES = ("11 12 13|11 12 14 15|16", "20 21 22 23 24|20 21 30 31 32 33")
CROWD: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 400, "num_blocks": 400}
FREE: dict[str, str | None] = {"f1": None, "f2": None}
BOUND: dict[str, str | None] = {f"b{number}": LANGUAGES[number % 2] for number in range(4)}
PARAMS = SamplingParams(temperature=1.5, max_tokens=7)
SPECIAL = attrs.evolve(PARAMS, repetition_penalty=1.3, logprobs=2)


def answers(
    asked: dict[str, str | None], *, depth: int = 2, runner: str = "gpu", special: bool = False, **more: Any
) -> dict[str, list[int]]:
    """The answers by name, of requests with or without a language."""
    device = DEVICE if runner == "gpu" else torch.device("cpu")
    model = build_random_model(TINY, dtype=torch.float32, device=device, seed=1)
    settings: dict[str, Any] = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 24,
        "max_model_len": 48,
        "block_size": 4,
    } | more
    settings |= {"depth": depth, "num_blocks": settings.get("num_blocks", 80)}
    settings.setdefault("grammars", FiniteGrammars(TINY.vocab_size))
    if runner == "gpu":
        served = serve(model, **settings)
    else:
        served = Served(model, lambda limits: TorchRunner(model, limits), **settings)
    for number, (name, language) in enumerate(asked.items()):
        prompt = [(7 * number + each) % TINY.vocab_size for each in range(2 + number % 3)]
        constraint = None if language is None else Constraint(KIND, language)
        params = SPECIAL if special and number % 2 else PARAMS
        served.add(name, prompt, params, number, eos_token_ids={EOS}, constraint=constraint)
    found = {name: Answer() for name in asked}
    while served.engine.has_work:
        served.turn(found)
    return {name: each.tokens for name, each in found.items()}


def test_bound_rows_obey_and_free_ones_do_not_change() -> None:
    alone = answers(FREE, special=True)
    found = answers(FREE | BOUND, special=True)
    assert {name: found[name] for name in FREE} == alone
    for name, language in BOUND.items():
        *answer, last = found[name]
        assert last == EOS
        assert language is not None
        assert " ".join(map(str, answer)) in language.split("|")
    assert len({tuple(found[name]) for name in BOUND}) > 2


def test_the_same_answers_at_another_depth_and_cramped() -> None:
    found = answers(FREE | BOUND)
    assert answers(FREE | BOUND, depth=1, num_blocks=14) == found


@pytest.mark.parametrize("special", [False, True])
def test_the_same_answers_where_masks_are_late(special: bool) -> None:
    """A row that is not drawn has neither its token nor what penalties would count of it."""
    found = answers(FREE | BOUND, special=special, grammars=TardyGrammars(TINY.vocab_size, LANGUAGES))
    assert found == answers(FREE | BOUND, special=special)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("special", [False, True])
def test_the_same_answers_where_prompts_are_read_before_their_grammars_are_there(
    special: bool, depth: int
) -> None:
    """Their first step decodes the newest token of a prompt."""
    slow = SlowlyCompiledGrammars(TINY.vocab_size)
    found = answers(FREE | BOUND, special=special, depth=depth, grammars=slow)
    assert found == answers(FREE | BOUND, special=special)


@pytest.mark.parametrize(("special", "locks"), [(False, True), (True, True), (False, False)])
def test_the_same_answers_where_masks_stay_in_memory_of_grammars(
    special: bool, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is written over as soon as a token is known, and is another one now and then; where it cannot be locked, masks are copied."""
    lock = PinnedMasks._lock
    monkeypatch.setattr(PinnedMasks, "_lock", lambda *given: lock(*given) * locks)
    seated = SeatedGrammars(TINY.vocab_size, LANGUAGES)
    found = answers(FREE | BOUND, special=special, grammars=seated)
    assert found == answers(FREE | BOUND, special=special)
    assert bool(seated.taken) is locks


def test_a_step_with_late_masks_is_drawn_as_any_other_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the launch that is captured: the host, which has waited for masks already, need not wait for the device."""
    late, alone = list[set[int]](), list[object]()
    behind, sample = SpecialDraws.draw_behind, SpecialDraws.sample

    def noted(*given: Any, missing: set[int], **more: Any) -> CudaTicket:
        late.extend([missing] if missing else [])
        calls = len(alone)
        drawn = behind(*given, missing=missing, **more)
        assert len(alone) == calls
        return drawn

    def sampled(*given: Any, **more: Any) -> CudaTicket:
        alone.append(given)
        return sample(*given, **more)

    monkeypatch.setattr(SpecialDraws, "draw_behind", noted)
    monkeypatch.setattr(SpecialDraws, "sample", sampled)
    answers(FREE | BOUND, grammars=TardyGrammars(TINY.vocab_size, LANGUAGES))
    assert late


@pytest.mark.skipif(ON_GPU, reason="another device rounds in other ways")
def test_the_same_answers_as_on_a_cpu() -> None:
    assert answers(FREE | BOUND, special=True) == answers(FREE | BOUND, special=True, runner="cpu")


def test_memory_is_lent_once_its_masks_have_been_drawn_with(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, drawn = list[int](), list[int]()
    issue = Drawing.issue

    def noted(drawing: Drawing, ticket: CudaTicket) -> CudaTicket:
        made = issue(drawing, ticket)
        if made.slot is not None:  # each is with masks
            drawn.append(made.slot)
        return made

    monkeypatch.setattr(Drawing, "issue", noted)
    monkeypatch.setattr(Arrivals, "reach", lambda _, slot: reached.append(slot))
    found = answers({"b": "11 12 13"})
    assert len(drawn) >= len(found["b"]) > 1
    assert reached == drawn[: len(reached)]
    assert len(reached) >= len(drawn) - 1


def test_there_is_room_for_masks_of_drafts_and_of_prompts_that_end_beside_them() -> None:
    failed = list[object]()
    grammars = FiniteGrammars(VOCAB, frozenset({EOS}))
    world = World(
        grammars=grammars, max_width=2, depth=2, on_failure=lambda *what: failed.append(what), **CROWD
    )
    sizes: dict[str, int] = {"most": most_masks(world.limits), "sink_row": world.limits.max_num_seqs}
    masks, asked = PinnedMasks(vocab_size=VOCAB, **sizes, device=DEVICE), list[int]()

    def lend(count: int) -> PinnedMasks:
        asked.append(count)
        return masks

    world.runner.mask_block = lend  # type: ignore[method-assign]
    for number in range(64):
        forced = Constraint(KIND, " ".join(map(str, range(20, 40))))
        world.add(f"{number}", range(number, number + 3), eos=[EOS], constraint=forced, max_tokens=8)
        if number == MOST_DRAFTED // 2 - 1:
            world.turn()
    world.run()
    assert not failed
    assert {tuple(each.token_ids) for each in world.answers.values()} == {tuple(range(20, 28))}
    assert max(asked) == MOST_DRAFTED + 64 - MOST_DRAFTED // 2
