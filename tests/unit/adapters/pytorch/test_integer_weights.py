"""Checkpoints of packed integers and 4-bit floats, in the layouts of AWQ, GPTQ, compressed-tensors and ModelOpt, against what their numbers stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Packing
from tests.unit.adapters.pytorch.packed_layouts import LAYOUTS, Layout
from tests.unit.adapters.pytorch.test_kept_weights import assert_same
from tests.unit.adapters.pytorch.tiny_models import CPU, PagedRun, TinyModel, make_prompt, make_tiny_model

pytestmark = pytest.mark.usefixtures("plain_products")
EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}


def projections(name: str) -> bool:
    return "_proj" in name


def pack(tiny: TinyModel, layout: Layout, of: Callable[[str], bool] = projections) -> None:
    """Write the projections as packed integers, and put what these stand for into the reference."""
    file, tensors = tiny.folder / "model.safetensors", load_file(tiny.folder / "model.safetensors")
    for name in [name for name in tensors if of(name) and name.endswith(".weight")]:
        parts, exact = layout.write(tensors.pop(name), 0)
        stem = name.removesuffix(".weight")
        tensors |= {f"{stem}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        _reference(tiny, name).copy_(exact)
    save_file(tensors, file)
    config = json.loads((tiny.folder / "config.json").read_text())
    (tiny.folder / "config.json").write_text(json.dumps({**config, "quantization_config": layout.config}))


def _reference(tiny: TinyModel, name: str) -> Tensor:
    """The weight that transformers computes with; it stacks experts."""
    stem, _, expert = name.removesuffix(".weight").partition(".experts.")
    if not expert:
        whole: Tensor = tiny.reference.get_parameter(name).data
        return whole
    number, _, kind = expert.partition(".")
    stack = tiny.reference.get_submodule(f"{stem}.experts")
    down: Tensor = stack.down_proj.data[int(number)]
    gate_up: Tensor = stack.gate_up_proj.data[int(number)]
    return down if kind == "down_proj" else gate_up.chunk(2)[kind == "up_proj"]


def built(folder: Path, *, keep: bool) -> DecoderModel:
    return build_model(read_spec(str(folder)), str(folder), dtype=torch.float32, device=CPU, keep=keep)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_is_what_its_numbers_stand_for(tmp_path: Path, layout: Layout, dtype: torch.dtype) -> None:
    weight = torch.randn(24, 160, generator=torch.Generator().manual_seed(1))
    if "64" in str(layout.config):
        weight = weight[:, :128].contiguous()
    parts, exact = layout.write(weight, 0)
    assert (exact - weight).abs().max() < 0.7
    tensors = {f"a.{name}": tensor.contiguous() for name, tensor in parts.items()}
    save_file(tensors | {"b.weight": weight}, tmp_path / "model.safetensors")
    filled = {name: torch.full(weight.shape, torch.nan, dtype=dtype) for name in ("a.weight", "b.weight")}
    load_checkpoint(str(tmp_path), Destinations(filled), packing=layout.packing)
    assert torch.equal(filled["a.weight"], exact.to(dtype))
    assert torch.equal(filled["b.weight"], weight.to(dtype))


@EACH
def test_a_model_of_them_writes_what_transformers_writes_with_the_weights_they_stand_for(
    tmp_path: Path, layout: Layout
) -> None:
    tiny = make_tiny_model(tmp_path, **SIZES)
    pack(tiny, layout)
    model = built(tmp_path, keep=False)
    prompt = make_prompt(7)
    with torch.inference_mode():
        tokens = tiny.reference.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=64, min_new_tokens=64, eos_token_id=None
        )[0].tolist()
    run = PagedRun.start(model, [tokens])
    (logits,) = run.step([len(prompt)])
    chosen = [int(logits[-1].argmax())]
    for _ in range(63):
        (logits,) = run.step([1])
        chosen.append(int(logits[-1].argmax()))
    assert chosen == tokens[len(prompt) :]
    torch.testing.assert_close(logits, tiny.expected(tokens[:-1])["logits"][-1:], rtol=0, atol=1e-4)


@EACH
def test_what_is_kept_packed_stands_for_the_same(tmp_path: Path, layout: Layout) -> None:
    pack(make_tiny_model(tmp_path, **SIZES), layout)
    kept = assert_same(built(tmp_path, keep=True), built(tmp_path, keep=False))
    assert kept == (8 if layout.kept else 0)


def test_experts_and_a_matrix_that_was_not_converted(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "qwen3_moe", hidden_size=64, moe_intermediate_size=32)
    pack(tiny, LAYOUTS["awq"], lambda name: projections(name) and "layers.1.self_attn" not in name)
    plain = built(tmp_path, keep=False)
    assert_same(built(tmp_path, keep=True), plain)
    prompt = make_prompt(9)
    (logits,) = PagedRun.start(plain, [prompt]).step([9])
    torch.testing.assert_close(logits, tiny.expected(prompt)["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", ["awq", "W4A16"])
def test_a_packed_head_beside_the_embedding_that_it_was_tied_to(tmp_path: Path, layout: str) -> None:
    tiny = make_tiny_model(tmp_path, **SIZES, tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        tmp_path / "model.safetensors",
    )
    tiny.reference.lm_head.weight = torch.nn.Parameter(tiny.reference.lm_head.weight.clone())
    pack(tiny, LAYOUTS[layout], lambda name: "lm_head" in name)
    prompt = make_prompt(9)
    (logits,) = PagedRun.start(built(tmp_path, keep=False), [prompt]).step([9])
    torch.testing.assert_close(logits, tiny.expected(prompt)["logits"], rtol=0, atol=1e-4)
    assert_same(built(tmp_path, keep=True), built(tmp_path, keep=False))


def _lose(part: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[f"a.{part}"]

    return change


def _set(part: str, value: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"a.{part}"] = value(tensors[f"a.{part}"]).contiguous()

    return change


def _one_nan(tensor: Tensor) -> Tensor:
    tensor[0, 0] = torch.nan
    return tensor


@pytest.mark.parametrize(
    ("layout", "change", "named"),
    [
        ("awq", _lose("scales"), "'a.qweight' has no a.scales in any file"),
        ("gptq", _lose("qzeros"), "'a.qweight' has no a.qzeros in any file"),
        ("W4A16", _lose("weight_scale"), "'a.weight_packed' has no a.weight_scale in any file"),
        ("W8A8", _lose("weight_scale"), "'a.weight' has no a.weight_scale in any file"),
        (
            "W8A8",
            _set("weight_scale", lambda each: each[:-1]),
            "the parts of 'a.weight' have shapes that do not",
        ),
        ("NVFP4", _lose("weight_scale"), "'a.weight_packed' has no a.weight_scale in any file"),
        ("NVFP4", _lose("weight_global_scale"), "has neither a.weight_global_scale nor a.weight_scale_2"),
        (
            "NVFP4",
            _set("weight_global_scale", torch.zeros_like),
            "'a.weight_scale' has numbers that are not finite",
        ),
        (
            "NVFP4",
            _set("weight_global_scale", lambda each: each * torch.inf),
            "'a.weight_global_scale' has numbers that are not finite",
        ),
        (
            "NVFP4",
            _set("weight_scale", lambda tensor: tensor[:, :-1]),
            "parts of a.weight have shapes that do not fit",
        ),
        (
            "NVFP4 of ModelOpt",
            _set("weight", lambda tensor: tensor[0]),
            "parts of a.weight have shapes that do not fit",
        ),
        ("NVFP4", _set("weight_scale", Tensor.double), "'a.weight_scale' is torch.float64"),
        (
            "MXFP4",
            _set("weight_scale", lambda tensor: tensor.fill_(255)),
            "'a.weight_scale' has numbers that are not finite",
        ),
        ("awq", _set("scales", _one_nan), "'a.scales' has numbers that are not finite"),
        ("W4A16", _set("weight_scale", _one_nan), "'a.weight_scale' has numbers that are not finite"),
        (
            "gptq",
            _set("scales", lambda each: each[:-1]),
            "the parts of 'a.weight' have shapes that do not fit",
        ),
        (
            "gptq",
            _set("g_idx", lambda each: each[:-1]),
            "the parts of 'a.weight' have shapes that do not fit",
        ),
        ("awq", _set("qzeros", lambda each: each[:, :-1]), "the parts of 'a.weight' have shapes that do not"),
        ("W4A16", _set("weight_shape", lambda each: each * 3), "integers of 1 bits; readable are 4 and 8"),
        ("W4A16", _set("weight_shape", lambda each: each * 0 - 5), "shapes that do not fit"),
        ("W4A16", _set("weight_packed", lambda each: each[:8]), "shapes that do not fit together"),
        ("W4A16", _set("weight_packed", lambda each: each.repeat(1, 2)), "or to quantization_config"),
        ("W8A16", _set("weight_packed", lambda each: each[:, ::2]), "or to quantization_config"),
        ("W4A16", _set("weight_scale", lambda each: each[:, :1]), "or to quantization_config"),
        ("W8A8", _set("weight_scale", lambda each: each.repeat(1, 2)), "or to quantization_config"),
        (
            "W4A16 with zero points",
            _lose("weight_zero_point"),
            "'a.weight_packed' has no a.weight_zero_point in any file",
        ),
        ("gptq, act-order", _lose("g_idx"), "'a.qweight' has no a.g_idx in any file"),
        ("gptq", _set("g_idx", lambda each: each + 7), "'a.g_idx' names groups that are not there"),
        ("awq", _set("qweight", lambda each: each.long()), "tensor 'a.qweight' has no place"),
    ],
)
def test_a_broken_matrix_is_named(tmp_path: Path, layout: str, change: Any, named: str) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    tensors = {
        f"a.{part}": tensor.contiguous() for part, tensor in LAYOUTS[layout].write(weight, 0)[0].items()
    }
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=named):
        load_checkpoint(
            str(tmp_path), Destinations({"a.weight": torch.empty(16, 64)}), packing=LAYOUTS[layout].packing
        )


@pytest.mark.parametrize("packing", [None, LAYOUTS["W4A16"].packing])
def test_a_matrix_of_which_nobody_says_how_it_is_packed_is_named(
    tmp_path: Path, packing: Packing | None
) -> None:
    """As in folders whose quantization stands in a file of its own."""
    parts, _ = LAYOUTS["awq"].write(torch.randn(16, 64), 0)
    tensors = {f"a.{part}": each.contiguous() for part, each in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"'a\.weight' is packed, .*: config\.json must have it"):
        load_checkpoint(str(tmp_path), Destinations({"a.weight": torch.empty(16, 64)}), packing=packing)


@EACH
def test_a_part_of_another_dtype_or_with_other_dimensions_is_named(tmp_path: Path, layout: Layout) -> None:
    """What would be read as other numbers, or not at all."""
    written, _ = layout.write(torch.randn(16, 64, generator=torch.Generator().manual_seed(1)), 0)
    parts = {f"a.{part}": tensor.contiguous() for part, tensor in written.items() if "input" not in part}
    for part, stored in parts.items():
        floats = stored.is_floating_point() and stored.dtype.itemsize > 1
        others = (torch.int8, torch.int16, torch.bool, torch.float8_e5m2, *[torch.float32][floats:])
        changed = [stored.to(each) for each in others if each is not stored.dtype]
        for wrong in (*changed, stored.flatten()[0].clone(), stored[None, None]):
            if part.endswith(("global_scale", "scale_2")) and not wrong.dim() and wrong.dtype is stored.dtype:
                continue
            save_file({**parts, part: wrong}, tmp_path / "model.safetensors")
            with pytest.raises(ModelLoadError, match=r"\ba\.\w+"):
                load_checkpoint(
                    str(tmp_path), Destinations({"a.weight": torch.empty(16, 64)}), packing=layout.packing
                )


@pytest.mark.parametrize("layout", ["gptq", "W4A16", "W8A8", "NVFP4 of ModelOpt"])
def test_names_of_a_model_without_a_head_are_shorter(tmp_path: Path, layout: str) -> None:
    """As of models that make vectors, whose matrices may be packed as well."""
    pack(make_tiny_model(tmp_path, **SIZES), LAYOUTS[layout])
    file, plain = tmp_path / "model.safetensors", built(tmp_path, keep=False)
    kept = assert_same(built(tmp_path, keep=True), plain)
    save_file({name.removeprefix("model."): each for name, each in load_file(file).items()}, file)
    assert_same(built(tmp_path, keep=False), plain)
    assert assert_same(built(tmp_path, keep=True), plain) == kept


@pytest.mark.parametrize("keep", [False, True])
def test_biases_of_nothing_that_a_library_wrote_beside_each_matrix_are_left_out(
    tmp_path: Path, *, keep: bool
) -> None:
    """As AutoGPTQ did for models without any; one that adds something has no place."""
    tiny = make_tiny_model(tmp_path, **SIZES)
    pack(tiny, LAYOUTS["gptq"])
    file = tmp_path / "model.safetensors"
    tensors, plain = load_file(file), built(tmp_path, keep=False)
    stems = [name.removesuffix("qweight") for name in tensors if name.endswith("qweight")]
    biases = {f"{each}bias": torch.zeros_like(tensors[f"{each}scales"][0]) for each in stems}
    save_file({**tensors, **biases}, file)
    assert_same(built(tmp_path, keep=keep), plain)
    biases[f"{stems[0]}bias"][-1] = 1
    save_file({**tensors, **biases}, file)
    with pytest.raises(ModelLoadError, match=f"'{stems[0]}bias' has no place"):
        built(tmp_path, keep=keep)


def test_a_matrix_of_another_shape_is_named(tmp_path: Path) -> None:
    parts, _ = LAYOUTS["awq"].write(torch.randn(16, 64), 0)
    save_file(
        {f"a.{part}": each.contiguous() for part, each in parts.items()}, tmp_path / "model.safetensors"
    )
    with pytest.raises(
        ModelLoadError, match=r"'a.qweight' stands for a weight of \[16, 64\], but the config"
    ):
        load_checkpoint(
            str(tmp_path), Destinations({"a.weight": torch.empty(64, 16)}), packing=LAYOUTS["awq"].packing
        )
