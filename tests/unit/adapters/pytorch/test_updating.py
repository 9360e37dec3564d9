"""Weights that are updated in place equal those of a model that was loaded anew, in every form; what is wrong changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.sleeping import held_tensors, host_memories
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.kernels.forms import StoredWeight
from nanoserve.ports.errors import BadValueError, ConflictError
from tests.unit.adapters.pytorch.test_kept_weights import MIXTURES
from tests.unit.adapters.pytorch.tiny_models import CASES, PagedRun, TinyModel, make_prompt, make_tiny_model

FORMS: dict[str, tuple[str, torch.dtype, str | None, dict[str, Any]]] = {
    **{family: (family, torch.float32, None, {}) for family in CASES},
    "tied": ("llama", torch.float32, None, {"tie_word_embeddings": True}),
    "bfloat16": ("llama", torch.bfloat16, None, {"hidden_size": 64}),
    "int8": ("llama", torch.bfloat16, "int8", {"hidden_size": 64}),
    "int4, tied": ("qwen3", torch.bfloat16, "int4", {"hidden_size": 64, "tie_word_embeddings": True}),
}


def logits(model: DecoderModel) -> Tensor:
    return torch.cat(PagedRun.start(model, [make_prompt(11)]).step([11]))


def two(tmp_path: Path, family: str = "llama", **config: Any) -> tuple[TinyModel, TinyModel]:
    """Two models of one shape."""
    config = {**CASES[family], **config}
    old = make_tiny_model(tmp_path / "old", family, seed=0, **config)
    return old, make_tiny_model(tmp_path / "new", family, seed=1, **config)


def update(weights: ModelWeights, folder: Path, *, partial: bool = False) -> str:
    weights.read(str(folder), anew=True, partial=partial)
    digest = weights.complete()
    weights.write()
    return digest


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_in_a_form_is_made_of_an_update_s_too(tmp_path: Path, *, tied: bool) -> None:
    old, new = two(tmp_path, tie_word_embeddings=tied)
    how: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "keep": True}
    model, loaded = (
        build_model(each.spec, str(each.folder), **how, quantize_head="int8") for each in (old, new)
    )
    update(ModelWeights(model, str(old.folder), None), new.folder)
    assert torch.equal(model.head.matrix.float(), loaded.head.matrix.float())
    assert torch.equal(model.embedding.weight, loaded.embedding.weight)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_experts_in_a_form_are_made_of_an_update_s_too(tmp_path: Path, family: str) -> None:
    """Whole updates, and one expert's matrix."""
    old, new = two(tmp_path, family, **MIXTURES[family])
    how: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "keep": True}
    model, before, loaded = (
        build_model(each.spec, str(each.folder), **how, quantization="fp8") for each in (old, old, new)
    )
    weights = ModelWeights(model, str(old.folder), "fp8")
    update(weights, new.folder)
    assert_experts_equal(model, loaded)
    update(weights, old.folder)
    assert_experts_equal(model, before)
    found = load_file(file_of(new.folder))
    name = next(each for each in found if each.endswith("experts.1.down_proj.weight"))
    (tmp_path / "part").mkdir()
    save_file({name: found[name]}, file_of(tmp_path / "part"))
    update(weights, tmp_path / "part", partial=True)
    (mixture, *_), (wanted, *_), (kept, *_) = (each.mixtures() for each in (model, loaded, before))
    assert torch.equal(mixture.experts.down[1].float(), wanted.experts.down[1].float())
    assert torch.equal(mixture.experts.down[0].float(), kept.experts.down[0].float())


def assert_experts_equal(model: DecoderModel, other: DecoderModel) -> None:
    for ours, theirs in zip(model.mixtures(), other.mixtures(), strict=True):
        assert isinstance(ours.experts.down, StoredWeight)
        assert torch.equal(ours.experts.gate_up.float(), theirs.experts.gate_up.float())
        assert torch.equal(ours.experts.down.float(), theirs.experts.down.float())


def file_of(folder: Path) -> Path:
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("form", "invariant"),
    [
        *((form, False) for form in FORMS),
        *((form, True) for form in ("llama", "deepseek_v3", "qwen3_moe", "int8")),
    ],
)
def test_an_updated_model_is_the_one_that_is_loaded(tmp_path: Path, form: str, invariant: bool) -> None:
    family, dtype, quantization, config = FORMS[form]
    old, new = two(tmp_path, family, **config)
    model, loaded = (each.build(dtype=dtype, quantization=quantization) for each in (old, new))
    if invariant:
        model.is_invariant = True
        loaded.is_invariant = True
    before = logits(model)
    places = {path: tensor.data_ptr() for path, _, _, tensor in held_tensors(model) if not tensor.is_mkldnn}
    weights = ModelWeights(model, str(old.folder), quantization)
    update(weights, new.folder)
    assert torch.equal(logits(model), logits(loaded))
    assert not torch.equal(before, logits(model))
    assert places == {path: tensor.data_ptr() for path, _, _, tensor in held_tensors(model) if path in places}
    update(weights, old.folder)
    assert torch.equal(logits(model), before)


def test_a_part_is_changed_and_the_rest_stays_over_several_updates(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    model = old.build()
    weights = ModelWeights(model, str(old.folder), None)
    changed, tensors = load_file(file_of(new.folder)), load_file(file_of(old.folder))
    digests = set()
    for number, name in enumerate(("model.layers.1.self_attn.k_proj.weight", "model.norm.weight")):
        part = tmp_path / f"part{number}"
        part.mkdir()
        save_file({name: changed[name]}, file_of(part))
        digests.add(update(weights, part, partial=True))
        tensors[name] = changed[name]
        merged = tmp_path / f"merged{number}"
        shutil.copytree(old.folder, merged)
        save_file(tensors, file_of(merged), metadata={"format": "pt"})
        wanted = TinyModel(old.spec, old.reference, merged).build()
        assert torch.equal(logits(model), logits(wanted))
    assert len(digests) == 2
    shutil.rmtree(tmp_path / "part0")
    with pytest.raises(BadValueError, match="part0"):
        weights.read(str(tmp_path / "part1"), anew=True, partial=True)
    weights.read(str(new.folder), anew=True, partial=False)  # all of them need nothing of before


def test_a_base_that_has_changed_leaves_no_part_as_it_is(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    weights = ModelWeights(old.build(), str(old.folder), None)
    shutil.copyfile(file_of(new.folder), file_of(old.folder))
    with pytest.raises(BadValueError, match="has changed since it was read"):
        weights.read(str(new.folder), anew=True, partial=True)


def test_tensors_in_memory_are_read_as_those_of_a_folder_and_name_what_is_missing(tmp_path: Path) -> None:
    old, new = two(tmp_path, "qwen3_moe")
    model, loaded = old.build(), new.build()
    weights = ModelWeights(model, str(old.folder), None)
    tensors = load_file(file_of(new.folder))
    first = dict(list(tensors.items())[:5])
    weights.read(first.items(), anew=True, partial=False)
    with pytest.raises(BadValueError, match="tensors were not sent"):
        weights.complete()
    with pytest.raises(ConflictError, match="no weights were read"):
        weights.complete()
    weights.read(first.items(), anew=True, partial=False)
    weights.read(iter(tensors.items()), anew=False, partial=False)
    digest = weights.complete()
    weights.write()
    assert torch.equal(logits(model), logits(loaded))
    weights.read(list(tensors.items()), anew=True, partial=False)
    assert weights.complete() != digest  # it came in one piece
    with pytest.raises(BadValueError, match="did not come from a folder"):
        weights.read({}.items(), anew=True, partial=True)


def corrupted(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        tensors = load_file(file_of(folder))
        change(tensors)
        save_file(tensors, file_of(folder), metadata={"format": "pt"})

    return corrupt


def cut(folder: Path) -> None:
    file_of(folder).write_bytes(file_of(folder).read_bytes()[:-100])


def headed(length: int) -> Callable[[Path], None]:
    """The eight bytes before the header say that it is so long."""

    def corrupt(folder: Path) -> None:
        file_of(folder).write_bytes(length.to_bytes(8, "little") + file_of(folder).read_bytes()[8:])

    return corrupt


def shard_missing(folder: Path) -> None:
    file_of(folder).unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')


NAME = "model.layers.0.mlp.down_proj.weight"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "not a number": (corrupted(lambda all_: all_[NAME][3].fill_(torch.nan)), f"{NAME}.*not finite"),
    "infinite": (corrupted(lambda all_: all_[NAME][3].fill_(torch.inf)), f"{NAME}.*not finite"),
    "shape": (corrupted(lambda all_: all_.update({NAME: all_[NAME][:-1].clone()})), f"{NAME}.*has shape"),
    "integers": (corrupted(lambda all_: all_.update({NAME: all_[NAME].to(torch.int8)})), "int8"),
    "8-bit floats": (
        corrupted(lambda all_: all_.update({NAME: all_[NAME].to(torch.float8_e4m3fn)})),
        "stored quantized",
    ),
    "another name": (corrupted(lambda all_: all_.update({"odd": all_.pop(NAME)})), "'odd' has no place"),
    "cut": (cut, "not a readable safetensors file"),
    "empty": (lambda folder: file_of(folder).write_bytes(b""), "model.safetensors: not a readable"),
    "no length": (headed(2**64 - 1), "model.safetensors: not a readable safetensors file"),
    "a short header": (headed(40), "model.safetensors: not a readable safetensors file"),
    "another header": (
        lambda folder: file_of(folder).write_bytes((5).to_bytes(8, "little") + b"[1,2]"),
        "model.safetensors: not a readable safetensors file",
    ),
    "a shard is missing": (shard_missing, "the shard is missing"),
    "nothing": (lambda folder: file_of(folder).unlink(), "holds neither"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named_and_the_weights_stay(tmp_path: Path, wrong: str) -> None:
    old, new = two(tmp_path)
    corrupt, reason = WRONG[wrong]
    model, loaded = old.build(), new.build()
    before = logits(model)
    weights = ModelWeights(model, str(old.folder), None)
    shutil.copytree(new.folder, tmp_path / "good")
    corrupt(new.folder)
    with pytest.raises(BadValueError, match=reason):
        weights.read(str(new.folder), anew=True, partial=False)
    assert torch.equal(logits(model), before)
    with pytest.raises(ConflictError):
        weights.complete()
    update(weights, tmp_path / "good")
    assert torch.equal(logits(model), logits(loaded))


def test_weights_that_came_from_no_folder_are_lost_in_a_deep_sleep_until_all_are_sent(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    model = old.build()
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    weights = ModelWeights(model, str(old.folder), None, memories=host_memories(model, kv))
    tensors = load_file(file_of(new.folder))
    for source, loses in ((iter(tensors.items()), True), (str(old.folder), False)):
        weights.read(source, anew=True, partial=False)
        weights.complete()
        weights.write()
        expected = logits(model)
        weights.sleep(1)
        weights.wake("weights")
        weights.wake("kv_cache")
        assert (weights.is_lost, torch.equal(logits(model), expected)) == (False, True)
        weights.sleep(2)
        weights.wake("weights")
        weights.wake("kv_cache")
        assert weights.is_lost is loses
    assert torch.equal(logits(model), logits(old.build()))


def test_what_is_complete_may_be_written_later_and_is_added_to_no_more(tmp_path: Path) -> None:
    old, new = two(tmp_path)
    model = old.build()
    weights = ModelWeights(model, str(old.folder), None)
    weights.read(str(new.folder), anew=True, partial=False)
    digest = weights.complete()
    with pytest.raises(ConflictError, match="is complete"):
        weights.read(str(old.folder), anew=False, partial=False)
    assert weights.complete() == digest
    weights.write()
    assert torch.equal(logits(model), logits(new.build()))


def test_a_tied_model_takes_no_head_of_its_own_and_one_of_another_model_is_refused(tmp_path: Path) -> None:
    old, new = two(tmp_path, tie_word_embeddings=True)
    other = make_tiny_model(tmp_path / "other", "qwen3", tie_word_embeddings=True)
    weights = ModelWeights(old.build(), str(old.folder), None)
    tensors = load_file(file_of(new.folder))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    save_file(tensors, file_of(new.folder), metadata={"format": "pt"})
    with pytest.raises(BadValueError, match="its own lm_head"):
        weights.read(str(new.folder), anew=True, partial=False)
    with pytest.raises(BadValueError, match="has no place in this model"):
        weights.read(str(other.folder), anew=True, partial=False)


def held_bytes(model: DecoderModel, kv: KVStore) -> int:
    pools = [pool for pools in kv.pools for pool in pools]
    held = [tensor for _, _, _, tensor in held_tensors(model)]
    if any(each.is_mkldnn for each in held):
        return 1
    storages = {each.data_ptr(): each.untyped_storage().nbytes() for each in [*held, *pools]}
    return sum(storages.values())


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("form", ["llama", "tied", "qwen3_moe", "bfloat16", "int4, tied"])
def test_a_model_that_slept_is_the_same(tmp_path: Path, form: str, level: int) -> None:
    family, dtype, quantization, config = FORMS[form]
    old, new = two(tmp_path, family, **config)
    model, loaded = (each.build(dtype=dtype, quantization=quantization) for each in (old, new))
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=dtype, device=torch.device("cpu"))
    weights = ModelWeights(model, str(old.folder), quantization, memories=host_memories(model, kv))
    full = held_bytes(model, kv)
    for folder, wanted in ((None, logits(model)), (new.folder, logits(loaded))):
        if folder is not None:
            update(weights, folder)
        weights.sleep(level)
        assert (held_bytes(model, kv) == 0) == (level == 2)
        weights.wake("weights")
        weights.wake("kv_cache")
        weights.wake("weights")  # is awake
        assert held_bytes(model, kv) == full
        assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("woken", ["weights", "kv_cache"])
@pytest.mark.parametrize("levels", [(1, 2), (2, 1), (2, 2)])
def test_a_part_that_was_woken_sleeps_again_beside_one_that_sleeps(
    tmp_path: Path, levels: tuple[int, int], woken: str
) -> None:
    old, _ = two(tmp_path)
    model = old.build()
    expected = logits(model)
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    weights = ModelWeights(model, str(old.folder), None, memories=host_memories(model, kv))
    full = held_bytes(model, kv)
    weights.sleep(levels[0])
    weights.wake(woken)
    weights.sleep(levels[1])
    dropped = levels[woken == "weights"] == 2
    assert (held_bytes(model, kv) == 0) is dropped
    for part in ("weights", "kv_cache"):
        weights.wake(part)
    assert held_bytes(model, kv) == full
    assert torch.equal(logits(model), expected)


def test_weights_that_could_not_come_back_are_not_dropped_and_those_that_cannot_may_be_tried_again(
    tmp_path: Path,
) -> None:
    old, _ = two(tmp_path)
    model = old.build()
    before = logits(model)
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    weights = ModelWeights(model, str(old.folder), None, memories=host_memories(model, kv))
    old.folder.rename(tmp_path / "away")
    with pytest.raises(BadValueError, match="could not be read again"):
        weights.sleep(2)
    assert torch.equal(logits(model), before)
    (tmp_path / "away").rename(old.folder)
    weights.sleep(2)
    old.folder.rename(tmp_path / "away")
    with pytest.raises(BadValueError, match="holds neither"):
        weights.wake("weights")
    (tmp_path / "away").rename(old.folder)
    weights.wake("weights")
    assert torch.equal(logits(model), before)
    for level in (0, 3):
        with pytest.raises(BadValueError, match="must be 1 or 2"):
            weights.sleep(level)
    with pytest.raises(BadValueError, match="driver has virtual memory"):
        ModelWeights(model, str(old.folder), None).sleep(1)
