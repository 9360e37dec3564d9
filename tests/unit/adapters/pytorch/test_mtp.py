"""Layers of a model's own checkpoint that draft: they guess what transformers' do, and answers are those without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.pytorch.eagle import EagleDrafts
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.sleeping import held_tensors, host_memories
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from tests.poisoned import PoisonedEngine, same
from tests.unit.adapters.pytorch.mtp_layers import TinyMtp, make_mtp
from tests.unit.adapters.pytorch.test_eagle import PARAMS, VOCAB
from tests.unit.adapters.pytorch.test_updating import update
from tests.unit.adapters.pytorch.tiny_models import make_prompt

PROMPTS = [make_prompt(3 + 4 * number, vocab_size=VOCAB, seed=number) for number in range(len(PARAMS))]


@pytest.fixture(scope="module", params=["glm4_moe", "deepseek_v3", "qwen3_next"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyMtp:
    return make_mtp(tmp_path_factory.mktemp("model"), request.param)


def test_a_layer_guesses_what_that_of_transformers_does_and_answers_stay(
    made: TinyMtp, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = attrs.evolve(made.tiny.spec, draft=None)
    without = PoisonedEngine(attrs.evolve(made.tiny, spec=spec).build(), block_size=4).answers(
        PROMPTS, PARAMS
    )
    seen: list[tuple[list[int], list[int]]] = []
    propose = EagleDrafts.propose

    def noting(self: EagleDrafts, most: Mapping[int, int]) -> dict[int, list[int]]:
        known = {row: self._rows.token_ids(row) for row in most}
        found = propose(self, most)
        seen.extend((known[row], found[row]) for row in most)
        return found

    monkeypatch.setattr(EagleDrafts, "propose", noting)
    limits: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 18,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 21,
    }
    engine = PoisonedEngine(made.tiny.build(), max_width=4, depth=2, **limits)
    for _ in range(2):  # the second time prompts are found in the cache
        for one, other in zip(engine.answers(PROMPTS, PARAMS), without, strict=True):
            same(one, other)
    assert engine.engine.scheduler.counters.draft_tokens > 50
    assert len(seen) > 20
    for known, guesses in seen[::5]:
        assert made.guesses(known, len(guesses)) == guesses


def test_a_checkpoint_without_the_layer_is_refused_by_name(made: TinyMtp, tmp_path: Path) -> None:
    tensors = load_file(made.tiny.folder / "model.safetensors")
    is_qwen = made.tiny.spec.architecture == "qwen3_next"
    behind = "mtp." if is_qwen else f"model.layers.{made.tiny.spec.num_layers}."
    join, norm = ("fc", "pre_fc_norm_hidden") if is_qwen else ("eh_proj", "hnorm")
    save_file(
        {name: each for name, each in tensors.items() if not name.startswith(behind)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(
        ModelLoadError, match=rf"has no layer that predicts further tokens \({behind}{join} is missing"
    ):
        attrs.evolve(made.tiny, folder=tmp_path).build()
    save_file(
        {name: each for name, each in tensors.items() if name != f"{behind}{norm}.weight"},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(
        ModelLoadError, match=f"lacks 1 tensors that its config asks for: {behind}{norm}.weight"
    ):
        attrs.evolve(made.tiny, folder=tmp_path).build()


def test_an_update_without_the_layer_leaves_it_as_in_the_first_folder_and_one_with_half_of_it_is_refused(
    made: TinyMtp, tmp_path: Path
) -> None:
    is_qwen = made.tiny.spec.architecture == "qwen3_next"
    behind = "mtp." if is_qwen else f"model.layers.{made.tiny.spec.num_layers}."
    old = load_file(made.tiny.folder / "model.safetensors")
    new = {name: tensor * 1.25 for name, tensor in old.items() if not name.startswith(behind)}
    half = {next(name for name in old if name.startswith(behind) and "norm" in name)}
    for name, kept in (("new", ()), ("half", half), ("merged", old.keys() - new.keys())):
        (tmp_path / name).mkdir()
        save_file(new | {each: old[each] for each in kept}, tmp_path / name / "model.safetensors")
    model, merged = made.tiny.build(), attrs.evolve(made.tiny, folder=tmp_path / "merged").build()
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    weights = ModelWeights(model, str(made.tiny.folder), None, memories=host_memories(model, kv))
    update(weights, tmp_path / "new")
    weights.sleep(2)
    weights.wake("weights")
    expected = {path: tensor for path, _, _, tensor in held_tensors(merged)}
    for path, _, _, tensor in held_tensors(model):
        same = expected[path]
        assert (
            torch.equal(tensor.to_dense(), same.to_dense()) if same.is_mkldnn else torch.equal(tensor, same)
        )
    with pytest.raises(BadValueError, match=f"tensors were not sent: {behind}"):
        update(weights, tmp_path / "half")
    (made.tiny.folder / "model.safetensors").touch()
    with pytest.raises(BadValueError, match=f"tensors were not sent: {behind}"):
        update(weights, tmp_path / "new")


def test_an_engine_drafts_with_the_layer_where_it_is_asked_to(made: TinyMtp) -> None:
    answers, drafts = dict[str, list[int]](), dict[str, int]()
    sizes: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "num_kv_blocks": 40,
        "max_model_len": 64,
        "threads": 1,
    }
    for speculate in ("off", "mtp"):
        settings = EngineSettings(model=str(made.tiny.folder), speculate=speculate, **sizes)
        engine = assemble_bench(settings).engine
        engine.add(Request(request_id="0", prompt_token_ids=tuple(PROMPTS[1]), sampling=PARAMS[0]))
        while engine.has_work:
            for event in engine.turn():
                if isinstance(event, TokensGenerated):
                    answers.setdefault(speculate, []).extend(event.token_ids)
        drafts[speculate] = engine.state().draft_tokens
    assert answers["off"] == answers["mtp"]
    assert drafts["off"] == 0 < drafts["mtp"]
    settings = attrs.evolve(settings, kv_offload_memory=2**20)
    with pytest.raises(BadValueError, match=r"kv_offload_memory: cannot be combined with .* speculate mtp"):
        assemble_bench(settings)
