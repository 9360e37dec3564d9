"""EAGLE-3 heads: they guess what plain operations over whole sequences guess, and answers are those without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.huggingface.draft_head import read_draft
from nanoserve.adapters.pytorch.eagle import EagleDrafts
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.sampling import SamplingParams
from tests.fakes.finite_grammars import FiniteGrammars
from tests.poisoned import PoisonedEngine, same
from tests.unit.adapters.pytorch.eagle_heads import TinyHead, make_head
from tests.unit.adapters.pytorch.tiny_models import CPU, TinyModel, make_prompt, make_tiny_model

VOCAB = 128
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20),
    SamplingParams(temperature=1.0, max_tokens=18),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=16, logprobs=2),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, max_tokens=14),
    SamplingParams(temperature=0.0, max_tokens=1),
    SamplingParams(temperature=1.0, max_tokens=18, prompt_logprobs=1),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=5)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    shared = make_prompt(9, vocab_size=VOCAB, seed=9)
    return [
        [*(shared if number % 2 else ()), *make_prompt(3 + 2 * number, vocab_size=VOCAB, seed=number)]
        for number in range(len(PARAMS))
    ]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"speculators": True, "adds_normed": True},
        {"adds_normed": True, "taps": (0, 1, 5)},
        {"speculators": True, "taps": (3, 4), "kv_heads": 4},
    ],
)
def test_a_head_guesses_what_plain_operations_guess(
    tiny: TinyModel,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: dict[str, Any],
) -> None:
    made = make_head(tmp_path, tiny.spec, **form)
    model, _ = made.load(tiny)
    seen: list[tuple[list[int], list[int]]] = []
    propose = EagleDrafts.propose

    def noting(self: EagleDrafts, most: Mapping[int, int]) -> dict[int, list[int]]:
        known = {row: self._rows.token_ids(row) for row in most}
        found = propose(self, most)
        assert found.keys() == most.keys()
        assert all(len(found[row]) == count for row, count in most.items())
        seen.extend((known[row], found[row]) for row in most)
        return found

    monkeypatch.setattr(EagleDrafts, "propose", noting)
    engine = PoisonedEngine(model, max_width=4, block_size=4, max_num_batched_tokens=16, max_num_seqs=4)
    engine.answers(prompts, PARAMS)
    assert len(seen) > 20
    for known, guesses in seen[::5]:
        assert made.guesses(tiny, known, len(guesses)) == guesses


@pytest.fixture(scope="module", params=[2, 4])
def made(
    request: pytest.FixtureRequest, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> TinyHead:
    return make_head(tmp_path_factory.mktemp("head"), tiny.spec, kv_heads=request.param)


@pytest.mark.parametrize(("width", "depth"), [(2, 2), (8, 2)])
def test_answers_are_those_without_a_head(
    tiny: TinyModel, made: TinyHead, prompts: list[list[int]], width: int, depth: int
) -> None:
    without = PoisonedEngine(tiny.build(), block_size=4).answers(prompts, PARAMS)
    model, _ = made.load(tiny)
    engine = PoisonedEngine(
        model,
        max_width=width,
        depth=depth,
        block_size=4,
        num_blocks=18,
        max_num_seqs=4,
        max_num_batched_tokens=21,
    )
    for _ in range(2):  # the second time prompts are found in the cache
        for one, other in zip(engine.answers(prompts, PARAMS), without, strict=True):
            same(one, other)
    assert engine.has_preempted
    assert engine.engine.scheduler.counters.draft_tokens > 50
    assert all(pool.num_free == 18 for pool in engine.engine.scheduler.cache.allocators)


def test_a_head_that_is_right_saves_steps(
    tiny: TinyModel, made: TinyHead, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = [SamplingParams(temperature=0.0, max_tokens=20)]
    model, head = made.load(tiny)
    without = PoisonedEngine(tiny.build()).answers(prompts[:1], greedy)
    text = [*prompts[0], *without[0].tokens]

    def knowing(hidden: torch.Tensor) -> torch.Tensor:
        del hidden
        counted.append(1)
        return torch.tensor([text[engine.runner._rows.length(0) + len(counted) - 1]])

    counted: list[int] = []
    propose = EagleDrafts.propose

    def anew(self: EagleDrafts, most: Mapping[int, int]) -> dict[int, list[int]]:
        counted.clear()
        return propose(self, most)

    monkeypatch.setattr(EagleDrafts, "propose", anew)
    monkeypatch.setattr(head, "guess", knowing)
    engine = PoisonedEngine(model, max_width=4)
    assert engine.answers(prompts[:1], greedy) == without
    # The first token follows the prompt; 19 more come in steps of four.
    assert engine.engine.scheduler.counters.steps == 1 + 5
    assert engine.engine.scheduler.counters.accepted_tokens == 14


def test_rows_with_grammars_have_their_own_drafts_beside(
    tiny: TinyModel, made: TinyHead, prompts: list[list[int]]
) -> None:
    asked = (
        prompts[:3],
        PARAMS[:3],
        ["5 6 7 8 9 10", "", "|".join(f"20 {each} 22 23 24" for each in range(30, 50))],
    )
    ends = frozenset({1})
    without = PoisonedEngine(tiny.build(), grammars=FiniteGrammars(VOCAB, ends)).bound(*asked)
    model, _ = made.load(tiny)
    engine = PoisonedEngine(model, max_width=4, grammars=FiniteGrammars(VOCAB, ends))
    for one, other in zip(engine.bound(*asked), without, strict=True):
        same(one, other)
    assert engine.engine.scheduler.counters.accepted_tokens >= 4


def spoil_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["LlamaForCausalLM2"]}, "is not a head that can draft"),
        ({"vocab_size": 130}, "130 tokens in the vocabulary, this one has 128"),
        ({"target_hidden_size": 96}, "96 elements of hidden states"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1"),
        ({"draft_vocab_size": 4000}, "draft_vocab_size must be from 1 to 128"),
        ({"draft_vocab_size": "40"}, "draft_vocab_size must be"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "must list up to 16 layers of the model, 0 to 5"),
        ({"eagle_aux_hidden_state_layer_ids": [1, True]}, "must list up to"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "must list up to"),
        ({"hidden_size": "x"}, "hidden_size must be of the type int"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_by_name(
    tiny: TinyModel, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    made = make_head(tmp_path, tiny.spec)
    spoil_config(tmp_path, **changes)
    (tmp_path / "model.safetensors").unlink()  # nothing of it is read
    with pytest.raises(ModelLoadError, match=complaint) as error:
        read_draft(str(made.folder), tiny.spec)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("fc.weight", torch.zeros(40, 64), r"'fc.weight' must be \[40, 144\], got \[40, 64\]"),
        ("d2t", torch.zeros(44), "'d2t' cannot be torch.float32"),
        ("d2t", torch.full((44,), 100), "leads to tokens that the model does not have"),
        ("norm.weight", torch.zeros(40, dtype=torch.int64), "cannot be torch.int64"),
        ("norm.weight", torch.full((40,), float("inf")), "'norm.weight' has numbers that are not finite"),
        ("norm.weight", None, "'norm.weight' is missing"),
        ("more.weight", torch.zeros(2), "'more.weight' has no place"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tiny: TinyModel, tmp_path: Path, name: str, tensor: torch.Tensor | None, complaint: str
) -> None:
    made = make_head(tmp_path, tiny.spec)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=complaint):
        made.load(tiny)


def test_a_model_with_windows_is_refused(tiny: TinyModel, tmp_path: Path) -> None:
    made = make_head(tmp_path / "head", tiny.spec)
    windowed = make_tiny_model(tmp_path / "model", "mistral", sliding_window=8)
    with pytest.raises(ModelLoadError, match="only for models with full attention"):
        read_draft(str(made.folder), windowed.spec)


def test_a_draft_model_that_does_not_fit_is_refused_by_name(tiny: TinyModel, tmp_path: Path) -> None:
    def refuse(spec: ModelSpec, complaint: str, model: str | None = None) -> None:
        with pytest.raises(ModelLoadError, match=complaint) as error:
            read_draft(str(tmp_path), spec, model)
        assert str(tmp_path) in str(error.value)

    small = make_tiny_model(tmp_path, "llama")
    refuse(attrs.evolve(tiny.spec, vocab_size=130), "has 128 tokens in the vocabulary, and the model has 130")
    refuse(make_tiny_model(tmp_path / "next", "qwen3_next").spec, "without recurrent states")
    for folder, vocab in ((tmp_path, {"a": 0, "b": 1}), (tmp_path / "next", {"a": 1, "b": 0})):
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    refuse(tiny.spec, "has another tokenizer than", str(tmp_path / "next"))
    tensors = load_file(tmp_path / "model.safetensors")
    spec = attrs.evolve(tiny.spec, draft=read_draft(str(tmp_path), tiny.spec))
    for spoilt, complaint in (
        (
            tensors | {"model.norm.weight": tensors["model.norm.weight"] * float("nan")},
            "'model.norm.weight' has numbers that are not finite",
        ),
        ({name: each for name, each in tensors.items() if name != "model.norm.weight"}, "model.norm.weight"),
    ):
        save_file(spoilt, small.folder / "model.safetensors")
        with pytest.raises(ModelLoadError, match=complaint):
            build_model(
                spec,
                "/nothing of the model is read",
                dtype=torch.float32,
                device=CPU,
                draft=str(small.folder),
            )
