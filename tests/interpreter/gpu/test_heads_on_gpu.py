"""Heads that draft, over the GPU's runner: they guess what plain operations guess, and answers are those without, token for token in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.draft_head import GpuDraftHead
from nanoserve.ports.sampling import SamplingParams
from tests.fakes.finite_grammars import FiniteGrammars
from tests.fakes.scripted_drafter import knowing
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.interpreter.matrix import cases
from tests.poisoned import same
from tests.served import Answer
from tests.unit.adapters.pytorch.eagle_heads import make_head
from tests.unit.adapters.pytorch.mtp_layers import make_mtp
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model

VOCAB = 128
TOKENS = 30 if ON_GPU else 8
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=TOKENS),
    SamplingParams(temperature=1.0, max_tokens=TOKENS - 1),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=TOKENS - 2, logprobs=2),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, max_tokens=TOKENS + 6),
    SamplingParams(temperature=1.0, max_tokens=TOKENS, prompt_logprobs=1),
]
LIMITS: dict[str, Any] = {"max_num_seqs": 4, "num_blocks": 60, "max_model_len": 64, "block_size": 4}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    shared = make_prompt(9, vocab_size=VOCAB, seed=9)
    return [
        [*(shared if number % 2 else ()), *make_prompt(3 + 2 * number, vocab_size=VOCAB, seed=number)]
        for number in range(len(PARAMS))
    ]


class Watched:
    """Notes what a head guesses behind which tokens; then most of its drafts become the tokens that follow in the `texts`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, prompts: Sequence[list[int]], answers: Sequence[Answer]
    ) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        self._drafter = knowing(prompts, answers, 0.7, vocab_size=VOCAB)
        propose = GpuDraftHead.propose

        def watched(head: GpuDraftHead, *, batch_rows: Tensor, width: int, **how: Any) -> None:
            propose(head, batch_rows=batch_rows, width=width, **how)
            for row in batch_rows.tolist():
                self._watch(head, row, width - 1)

        monkeypatch.setattr(GpuDraftHead, "propose", watched)

    def _watch(self, head: GpuDraftHead, row: int, count: int) -> None:
        arena = head._arena
        length, limit = int(arena.lengths[row]), int(arena.limits[row])
        if limit - length > 1 and int(arena.takes_drafts[row]) == 1:
            tokens = arena.tokens[row, length : length + count]
            known = arena.tokens[row, :length].tolist()
            self.seen.append((known, tokens.tolist()[: limit - length - 1]))
            tokens.copy_(torch.tensor(self._drafter.propose(known, count), dtype=torch.int32))

    def check(self, guess: Callable[[Sequence[int], int], list[int]]) -> None:
        assert len(self.seen) >= 4
        for known, guesses in self.seen:
            assert guess(known, len(guesses)) == guesses


@cases(
    ("form", "deterministic", "count"),
    [({"adds_normed": True}, False, 2)],
    also=[
        ({}, False, 5),
        ({"speculators": True, "taps": (0, 1, 3)}, False, 5),
        ({"speculators": True, "adds_normed": True, "taps": (1, 1, 2), "kv_heads": 4}, False, 3),
        ({}, True, 5),
    ],
)
def test_a_head_guesses_what_plain_operations_guess_whatever_was_right(  # noqa: PLR0917 - fixtures and cases
    tiny: TinyModel,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: dict[str, Any],
    deterministic: bool,
    count: int,
) -> None:
    asked = prompts[-count:], PARAMS[:count]
    without = serve(tiny.build(device=DEVICE), deterministic=deterministic, **LIMITS).answers(*asked)
    made = make_head(tmp_path, tiny.spec, **form)
    model, _ = made.load(tiny, device=DEVICE)
    watched = Watched(monkeypatch, asked[0], without)
    served = serve(
        model,
        deterministic=deterministic,
        enforce_eager=True,
        max_width=4,
        max_num_batched_tokens=16,
        **LIMITS,
    )
    watched.seen.clear()  # of rehearsals
    for one, other in zip(served.answers(*asked), without, strict=True):
        same(one, other)
    watched.check(functools.partial(made.guesses, tiny))
    counters = served.engine.scheduler.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens


@cases(
    ("family", "deterministic"),
    [("glm4_moe", False)],
    also=[
        ("glm4_moe", True),
        *((family, invariant) for family in ("deepseek_v3", "qwen3_next") for invariant in (False, True)),
    ],
)
def test_a_layer_of_the_model_guesses_what_that_of_transformers_does(
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    deterministic: bool,
) -> None:
    asked = prompts[-2:], PARAMS[:2]
    made = make_mtp(tmp_path, family)
    plain = attrs.evolve(made.tiny, spec=attrs.evolve(made.tiny.spec, draft=None))
    without = serve(plain.build(device=DEVICE), deterministic=deterministic, **LIMITS).answers(*asked)
    watched = Watched(monkeypatch, asked[0], without)
    how: dict[str, Any] = {"enforce_eager": True, "max_width": 4, "max_num_batched_tokens": 16}
    served = serve(made.tiny.build(device=DEVICE), deterministic=deterministic, **how, **LIMITS)
    watched.seen.clear()  # of rehearsals
    for one, other in zip(served.answers(*asked), without, strict=True):
        same(one, other)
    watched.check(made.guesses)


@cases(("width", "depth"), [], also=[(2, 2), (4, 1), (4, 2), (8, 2)])
def test_answers_are_those_without_a_head(
    tiny: TinyModel, prompts: list[list[int]], tmp_path: Path, width: int, depth: int
) -> None:
    first = 0 if ON_GPU else 2
    asked = prompts[first:], PARAMS[first:]
    without = serve(tiny.build(device=DEVICE), **LIMITS).answers(*asked)
    model, _ = make_head(tmp_path, tiny.spec).load(tiny, device=DEVICE)
    limits = LIMITS | {"num_blocks": 60 if ON_GPU else 10, "max_num_batched_tokens": 21}
    served = serve(model, max_width=width, depth=depth, **limits)
    for _ in range(2 if ON_GPU else 1):  # the second time prompts are found in the cache
        for one, other in zip(served.answers(*asked), without, strict=True):
            same(one, other)
    assert served.engine.scheduler.counters.draft_tokens > 4
    assert all(pool.num_free == limits["num_blocks"] for pool in served.engine.scheduler.cache.allocators)


@cases("depth", [], also=[1, 2])
def test_rows_with_grammars_have_their_own_drafts_beside(
    tiny: TinyModel,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    depth: int,
) -> None:
    bound = ["5 6 7 8 9 10 11 12", "", "|".join(f"20 {each} 22 23 24" for each in range(30, 50))]
    asked = prompts[:3], [attrs.evolve(PARAMS[each], max_tokens=14) for each in (0, 1, 1)], bound
    ends = frozenset({1})
    without = serve(tiny.build(device=DEVICE), grammars=FiniteGrammars(VOCAB, ends), **LIMITS).bound(*asked)
    made = make_head(tmp_path, tiny.spec)
    model, _ = made.load(tiny, device=DEVICE)
    watched = Watched(monkeypatch, asked[0], without)
    served = serve(
        model,
        enforce_eager=True,
        max_width=4,
        depth=depth,
        grammars=FiniteGrammars(VOCAB, ends),
        **LIMITS,
    )
    watched.seen.clear()  # of rehearsals
    for one, other in zip(served.bound(*asked), without, strict=True):
        same(one, other)
    watched.check(functools.partial(made.guesses, tiny))
    assert served.engine.scheduler.counters.accepted_tokens >= 4
