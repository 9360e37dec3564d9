"""Loading fills every weight from one file or from shards, and names the tensor or file that is wrong; both ways."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch import models
from nanoserve.adapters.pytorch.linear import onednn
from nanoserve.adapters.pytorch.weights.checkpoint import load_checkpoint
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.unit.adapters.pytorch.host_lane import HostLane
from tests.unit.adapters.pytorch.tiny_models import CASES, PagedRun, TinyModel, make_prompt, make_tiny_model

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True, params=["copied", "staged"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading as for a CPU, and as for a GPU by two threads."""
    if request.param == "staged":
        staged = functools.partial(load_checkpoint, lanes=[HostLane(), HostLane()])
        monkeypatch.setattr(models, "load_checkpoint", staged)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyModel:
    return make_tiny_model(tmp_path)


@pytest.fixture
def tied(tmp_path: Path) -> TinyModel:
    return make_tiny_model(tmp_path, tie_word_embeddings=True)


def edit(tiny: TinyModel, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(tiny.folder / FILE)
    change(tensors)
    save_file(tensors, tiny.folder / FILE)


def shard(tiny: TinyModel) -> None:
    """Split the checkpoint into two shards and an index."""
    tensors = load_file(tiny.folder / FILE)
    names = sorted(tensors)
    files = {"first.safetensors": names[::2], "second.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, tiny.folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    (tiny.folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (tiny.folder / FILE).unlink()


def logits(tiny: TinyModel) -> Tensor:
    prompt = make_prompt(11)
    return PagedRun.start(tiny.build(), [prompt]).step([11])[0]


def test_shards_give_the_model_that_one_file_gives(tiny: TinyModel) -> None:
    whole = logits(tiny)
    shard(tiny)
    assert torch.equal(logits(tiny), whole)


@pytest.fixture(params=["qwen3_moe", "mixtral", "olmoe", "minimax_m2"])
def sparse(request: pytest.FixtureRequest, tmp_path: Path) -> TinyModel:
    return make_tiny_model(tmp_path, request.param)


def test_experts_may_be_stored_one_by_one_in_shards_or_stacked(sparse: TinyModel) -> None:
    whole = logits(sparse)
    stored = load_file(sparse.folder / FILE)
    sparse.reference.save_pretrained(sparse.folder, save_original_format=False)
    assert len(load_file(sparse.folder / FILE)) < len(stored) / 2
    assert torch.equal(logits(sparse), whole)
    save_file(stored, sparse.folder / FILE)
    shard(sparse)
    assert torch.equal(logits(sparse), whole)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe", "granitemoe", "qwen3_next"])
def test_stacks_of_other_families_give_the_same_model(tmp_path: Path, name: str) -> None:
    tiny = make_tiny_model(tmp_path, name, **CASES[name])
    whole, stored = logits(tiny), load_file(tiny.folder / FILE)
    tiny.reference.save_pretrained(tiny.folder, save_original_format=False)
    assert load_file(tiny.folder / FILE).keys() != stored.keys()
    assert torch.equal(logits(tiny), whole)


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "minimax_m2"])
def test_a_correction_is_float32_in_any_model(tmp_path: Path, name: str) -> None:
    tiny = make_tiny_model(tmp_path, name, **CASES[name])
    rounded = {key: tensor.bfloat16() for key, tensor in load_file(tiny.folder / FILE).items()}
    save_file(rounded, tiny.folder / FILE)
    feed: Any = tiny.build(dtype=torch.bfloat16).layers[1][1]
    assert feed.correction.dtype == torch.float32
    (stored,) = (
        tensor for key, tensor in rounded.items() if re.search(r"layers\.1\..*correction_bias$", key)
    )
    assert torch.equal(feed.correction, stored.float())


def test_a_missing_expert_is_named(sparse: TinyModel) -> None:
    name = next(
        name for name in load_file(sparse.folder / FILE) if re.search(r"layers.1.*experts\.4\.", name)
    )
    edit(sparse, lambda tensors: tensors.pop(name))
    with pytest.raises(
        ModelLoadError,
        match=rf"lacks 1 tensors that its config asks for: {re.escape(name)}: download it again",
    ):
        sparse.build()


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (4, r"experts\.\d\.\w+\.weight' has no place|but the config asks for \[4"),
        (9, r"but the config asks for \[9|lacks"),
    ],
)
def test_another_number_of_experts_is_an_error(sparse: TinyModel, count: int, message: str) -> None:
    feeds: list[Any] = [layer.feed for layer in sparse.spec.layers]
    layers = tuple(
        attrs.evolve(layer, feed=attrs.evolve(feed, count=count))
        for layer, feed in zip(sparse.spec.layers, feeds, strict=True)
    )
    with pytest.raises(ModelLoadError, match=message):
        attrs.evolve(sparse, spec=attrs.evolve(sparse.spec, layers=layers)).build()


def test_a_quantized_mixture_is_refused(sparse: TinyModel) -> None:
    with pytest.raises(BadValueError, match="quantization: int8 has no kernels for a mixture of experts"):
        sparse.build(quantization="int8")


def test_a_tied_head_needs_no_tensor_and_shares_an_equal_one(tied: TinyModel) -> None:
    embedding = load_file(tied.folder / FILE)["model.embed_tokens.weight"]
    assert "lm_head.weight" not in load_file(tied.folder / FILE)
    expected = logits(tied)
    rotary = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    edit(tied, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()} | rotary))
    assert torch.equal(logits(tied), expected)
    assert tied.build().spec.tied_embeddings
    torch.testing.assert_close(expected, tied.expected(make_prompt(11))["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "model.layers.1.self_attn.k_proj.weight",
            None,
            r"lacks 1 .*model\.layers\.1\.self_attn\.k_proj\.weight",
        ),
        (
            "model.layers.0.self_attn.q_proj.bias",
            torch.zeros(64),
            r"model\.safetensors.*self_attn\.q_proj\.bias",
        ),
        ("model.norm.weight", torch.zeros(47), r"model\.norm\.weight.*\[47\].*\[48\]"),
        ("model.norm.weight", torch.zeros(1), r"model\.norm\.weight.*\[1\].*\[48\]"),
        ("model.norm.weight", torch.zeros(48, dtype=torch.int32), r"model\.norm\.weight' is torch\.int32"),
    ],
    ids=["missing", "left over", "mis-shaped", "not spread", "integers"],
)
def test_a_wrong_tensor_is_named(tiny: TinyModel, name: str, tensor: Tensor | None, message: str) -> None:
    edit(tiny, lambda tensors: tensors.pop(name) if tensor is None else tensors.update({name: tensor}))
    with pytest.raises(ModelLoadError, match=message):
        tiny.build()


def test_an_untied_model_misses_its_head(tied: TinyModel) -> None:
    untied = attrs.evolve(tied, spec=attrs.evolve(tied.spec, tied_embeddings=False))
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight"):
        untied.build()


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_named(tiny: TinyModel, keep: int) -> None:
    file = tiny.folder / FILE
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: not a readable safetensors file"):
        tiny.build()


BROKEN_INDICES = ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}']


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (FILE, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("second.safetensors", None, r"second\.safetensors: the shard is missing"),
        *((INDEX, text, r"index\.json: not a readable index") for text in BROKEN_INDICES),
    ],
)
def test_a_file_that_is_none_is_named(tiny: TinyModel, file: str, text: str | None, message: str) -> None:
    if file != FILE:
        shard(tiny)
    (tiny.folder / file).unlink()
    if text is not None:
        (tiny.folder / file).write_text(text)
    with pytest.raises(ModelLoadError, match=message):
        tiny.build()


@pytest.mark.parametrize("way", ["", "..", "inner/../.."])
def test_a_shard_is_named_by_no_way_out_of_the_folder(tiny: TinyModel, way: str) -> None:
    """Nor by an absolute path; the file is the right one, so only its name is refused."""
    shard(tiny)
    (tiny.folder / "inner").mkdir()
    file = tiny.folder / "second.safetensors"
    names = json.loads((tiny.folder / INDEX).read_text())["weight_map"]
    written = f"{way}/{tiny.folder.name}/{file.name}" if way else str(file.absolute())
    moved = {name: written if each == file.name else each for name, each in names.items()}
    (tiny.folder / INDEX).write_text(json.dumps({"weight_map": moved}))
    assert (tiny.folder / written).is_file()
    with pytest.raises(ModelLoadError, match=r"index\.json: names .* a way out of the model's folder"):
        tiny.build()


def test_an_empty_or_absent_folder_is_named(tmp_path: Path, tiny: TinyModel) -> None:
    for folder in (tmp_path / "absent", tmp_path / FILE):
        with pytest.raises(ModelLoadError, match=r"holds neither model\.safetensors nor"):
            attrs.evolve(tiny, folder=folder).build()


def test_weights_are_converted_to_the_dtype_asked_for(tiny: TinyModel) -> None:
    model = tiny.build(dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.skipif(not onednn.available(torch.bfloat16), reason="no bfloat16 products on this CPU")
def test_packing_leaves_no_plain_matrix_but_the_embedding(tied: TinyModel) -> None:
    model = tied.build(dtype=torch.bfloat16)
    matrices = [name for name, parameter in model.named_parameters() if parameter.dim() == 2]
    assert matrices == ["embedding.weight"]
    prompt = make_prompt(11)
    (packed,) = PagedRun.start(model, [prompt]).step([11])
    assert (packed - tied.expected(prompt)["logits"]).abs().mean() < 0.05


@pytest.mark.parametrize(("quantization", "tolerance"), [("int8", 0.03), ("int4", 0.25)])
def test_a_quantized_model_stays_close(tiny: TinyModel, quantization: str, tolerance: float) -> None:
    prompt = make_prompt(20)
    expected = tiny.expected(prompt)["logits"]
    (actual,) = PagedRun.start(tiny.build(quantization=quantization), [prompt]).step([20])
    assert (actual - expected).norm() < tolerance * expected.norm()
