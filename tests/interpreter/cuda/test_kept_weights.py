"""A GPU's steps with weights that are kept as stored answer as with the weights that these stand for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import torch

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.policies import Skinny, Wide, policy_for
from nanoserve.adapters.pytorch.cuda.self_test import Bench, check_kernels
from nanoserve.adapters.pytorch.cuda.workspace import make_workspace
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.weights.keeping import forms_of
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import Chunk
from tests.interpreter.gpu.serving import serve
from tests.interpreter.matrix import cases
from tests.plans import SIZES, Driver, admitted
from tests.unit.adapters.gguf.gguf_files import write_gguf
from tests.unit.adapters.pytorch.packed_layouts import LAYOUTS
from tests.unit.adapters.pytorch.test_integer_weights import pack as pack_integers
from tests.unit.adapters.pytorch.test_kept_weights import MIXTURES, pack, store, weights
from tests.unit.adapters.pytorch.tiny_models import GPT_OSS, LATENT, PagedRun, make_prompt, make_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PACKED: Final = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
MODELS: Final[dict[str, tuple[str, Any, dict[str, Any]]]] = {
    "dense": ("llama", "fp8", {"hidden_size": 144, "intermediate_size": 200, "num_hidden_layers": 1}),
    "experts": ("minimax_m2", "fp8", {}),
    "latents and a shared expert": ("deepseek_v3", "fp8", {**LATENT, "moe_intermediate_size": 128}),
    "integers": ("llama", "int4", {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}),
    "mxfp4": ("gpt_oss", "mxfp4", {**PACKED, "layer_types": ["sliding_attention", "full_attention"]}),
}


EVERY = list(itertools.product(MODELS, (False, True)))
ALWAYS = [("dense", False), ("integers", True)]


def checkpoint(folder: Path, name: str) -> None:
    architecture, form, config = MODELS[name]
    tiny = make_tiny_model(folder, architecture, **config)
    if form == "int4":
        pack_integers(tiny, LAYOUTS["awq"])
    elif form == "mxfp4":
        pack(folder)
    else:
        store(folder, "blocks")


def built(folder: Path, name: str, *, keep: bool) -> DecoderModel:
    spec = attrs.evolve(read_spec(str(folder)), stored=MODELS[name][1])
    return build_model(spec, str(folder), dtype=torch.float32, device=DEVICE, keep=keep)


def answers(model: DecoderModel, *, deterministic: bool) -> tuple[list[int], list[int]]:
    """Greedy tokens of two prompts, one of which first is alone."""
    sizes = attrs.evolve(SIZES, block_size=16, vocab_size=model.spec.vocab_size)
    driver = Driver(build_runner(model, sizes, deterministic=deterministic)[0])
    first, second = make_prompt(11), make_prompt(5, seed=1)
    groups = len(model.spec.cache_groups)
    driver.step(
        admitted=[admitted(1, first, *[[1, 2, 3]] * groups, temperature=0.0)],
        chunks=[Chunk(1, 0, 11, samples=True)],
    )
    for _ in range(2):
        driver.step(decoding=[1])
    driver.step(
        admitted=[admitted(0, second, *[[4, 5]] * groups, temperature=0.0)],
        chunks=[Chunk(0, 0, 5, samples=True)],
        decoding=[1],
    )
    driver.step(decoding=[0, 1])
    return driver.of(0), driver.of(1)


@cases(("name", "deterministic"), ALWAYS, also=[each for each in EVERY if each not in ALWAYS])
def test_answers_are_the_same(tmp_path: Path, name: str, *, deterministic: bool) -> None:
    checkpoint(tmp_path, name)
    kept, plain = (
        answers(built(tmp_path, name, keep=keep), deterministic=deterministic) for keep in (True, False)
    )
    assert kept == plain
    assert len(kept[1]) == 5


@cases(
    ("family", "form"),
    [("mixtral", "fp8"), ("deepseek_v3", "int4")],
    also=itertools.product(MIXTURES, ("fp8", "int4")),
)
def test_experts_in_a_form_answer_as_what_they_stand_for(tmp_path: Path, family: str, form: str) -> None:
    tiny = make_tiny_model(tmp_path, family, **MIXTURES[family])
    how: dict[str, Any] = {"dtype": torch.float32, "device": DEVICE, "keep": True}
    narrow, wide = (build_model(tiny.spec, str(tmp_path), **how, quantization=each) for each in (form, None))
    assert {each.name for mixture in narrow.mixtures() for each in mixture.forms} == {form}
    targets = weights(wide)
    for name, each in weights(narrow).items():
        target = targets[name]
        assert isinstance(target, torch.Tensor)
        target.copy_(each.float())
    assert answers(narrow, deterministic=False) == answers(wide, deterministic=False)


@cases(
    ("name", "head", "deterministic"),
    [("integers", "int8", False)],
    also=itertools.product(("dense", "integers"), ("fp8", "int8"), (False, True)),
)
def test_a_head_in_a_form_answers_as_what_it_stands_for(
    tmp_path: Path, name: str, head: str, *, deterministic: bool
) -> None:
    checkpoint(tmp_path, name)
    spec = attrs.evolve(read_spec(str(tmp_path)), stored=MODELS[name][1])
    how: dict[str, Any] = {"dtype": torch.float32, "device": DEVICE, "keep": True}
    narrow = build_model(spec, str(tmp_path), **how, quantize_head=head)
    wide = build_model(spec, str(tmp_path), **how)
    wide.head.weight.copy_(narrow.head.matrix.float())
    check_kernels(Bench(model=narrow, block_size=16))
    assert answers(narrow, deterministic=deterministic) == answers(wide, deterministic=deterministic)


GGUF: Final[dict[str, Any]] = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}


@cases("kind", [], also=["Q4_K", "Q4_1"])
def test_a_gguf_file_answers_packed_as_on_a_cpu(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most kinds of block that stay packed, no two of which make one matrix."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds = {"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q4_0", "attn_output": "Q8_0", "ffn_down": "Q6_K"}
    tiny = make_tiny_model(tmp_path, **GGUF)
    folder = present_folder(str(write_gguf(tmp_path / "a.gguf", tiny.reference, kind=kind, kinds=kinds)))
    kept, plain = (
        build_model(read_spec(folder), folder, dtype=torch.float32, device=device, keep=keep)
        for device, keep in ((DEVICE, True), (torch.device("cpu"), False))
    )
    assert len([each for each in forms_of(kept) if each is not None]) == 4
    tokens = make_prompt(11)
    (logits,) = PagedRun.start(plain, [tokens]).step([11])
    for _ in range(5):
        tokens.append(int(logits[-1].argmax()))
        (logits,) = PagedRun.start(plain, [tokens]).step([len(tokens)])
    assert answers(kept, deterministic=False)[1] == tokens[11:]


@cases("name", [], also=MODELS)
def test_the_self_test_knows_them(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path, name)
    check_kernels(Bench(model=built(tmp_path, name, keep=True), block_size=16))


@cases("form", ["blocks"], also=["rows"])
def test_in_deterministic_mode_rows_of_8_bit_floats_answer_alike_alone_and_in_a_batch(
    tmp_path: Path, form: str
) -> None:
    """In half precision what is multiplied with them is rounded to 8 bits as well, each row by itself."""
    make_tiny_model(tmp_path, **MODELS["dense"][2] | {"hidden_size": 128})
    store(tmp_path, form)
    spec = attrs.evolve(read_spec(str(tmp_path)), stored="fp8")
    model = build_model(spec, str(tmp_path), dtype=torch.float16, device=DEVICE, keep=True)
    prompts = [make_prompt(9), make_prompt(23, seed=1)]
    how = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2)
    together = serve(model, deterministic=True).answers(prompts, [how] * 2)
    assert [serve(model, deterministic=True).answers([each], [how])[0] for each in prompts] == together


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 16), (torch.float32, 64)])
def test_more_than_16_rows_multiply_with_8_bit_floats_as_many_do(
    tmp_path: Path, dtype: torch.dtype, most: int
) -> None:
    """In single precision the weight is widened for any number of rows."""
    make_tiny_model(tmp_path, **MODELS["dense"][2])
    store(tmp_path, "rows")
    spec = attrs.evolve(read_spec(str(tmp_path)), stored="fp8")
    model = build_model(spec, str(tmp_path), dtype=dtype, device=DEVICE, keep=True)
    space = make_workspace(model, max_tokens=64, max_num_seqs=64, dtype=dtype, device=DEVICE)
    many = ManyRows(invariant=False)
    assert isinstance(policy_for(most, many, space.most_skinny), Skinny)
    assert isinstance(policy_for(most + 1, many, space.most_skinny), Wide)
