"""Keys and values in 8-bit floats: the whole model equals transformers over a cache that rounds them, and windows stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.adapters.pytorch.weights.kv_scales import kv_scales
from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.kernels.kept import FLOAT8
from nanoserve.ports.sampling import SamplingParams
from tests.rounding_cache import Rounding, rounded
from tests.served import Served, is_greedy
from tests.unit.adapters.pytorch.tiny_models import (
    GEMMA2,
    GPT_OSS,
    HYBRID,
    PagedRun,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {"num_key_value_heads": 1}),
    "windows-and-soft-caps": ("gemma2", GEMMA2),
    "sinks": ("gpt_oss", {**GPT_OSS, "swiglu_limit": 7.0}),
    "states": ("qwen3_next", HYBRID),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def make(folder: Path, family: str) -> TinyModel:
    architecture, config = FAMILIES[family]
    tiny = make_tiny_model(folder, architecture, **config)
    return attrs.evolve(tiny, spec=tiny.spec.keeping("fp8"))


def build(tiny: TinyModel) -> DecoderModel:
    """With scales that differ from head to head, one of which cuts some keys off."""
    model = tiny.build()
    generator = torch.Generator().manual_seed(1)
    for scales in kv_scales(model).values():
        scales.copy_(0.01 + 0.3 * torch.rand(scales.shape, generator=generator))
        scales[0, 0] = 0.004
    return model


@pytest.fixture(params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> TinyModel:
    return make(tmp_path, request.param)


@pytest.fixture
def llama(tmp_path: Path) -> TinyModel:
    return make(tmp_path, "llama")


def test_every_token_reads_what_transformers_reads_from_a_rounding_cache(tiny: TinyModel) -> None:
    model, prompts = build(tiny), [make_prompt(length, seed=length) for length in (37, 21)]
    run, reference = PagedRun.start(model, prompts), Rounding(tiny.reference, model)
    found: list[list[torch.Tensor]] = [[], []]
    for counts in ((20, 5), (1, 15), (16, 0), (0, 1)):
        rows = [row for row, count in enumerate(counts) if count]
        for row, logits in zip(rows, run.step(counts), strict=True):
            found[row].append(logits)
    for prompt, parts in zip(prompts, found, strict=True):
        wanted = reference.logits(prompt)
        # A number between two others may be rounded to either where its last bit differs.
        torch.testing.assert_close(torch.cat(parts), wanted, rtol=2e-3, atol=2e-3)
        plain = tiny.expected(prompt)["logits"]
        assert (wanted - plain).abs().max() > 1e-2, "nothing was rounded"


def test_layers_that_read_everything_are_narrow_and_others_are_not(tmp_path: Path) -> None:
    for family in ("windows-and-soft-caps", "states"):
        tiny = make(tmp_path / family, family)
        run = PagedRun.start(tiny.build(), [make_prompt(5)])
        kinds = {layer: group.kind.name for group in tiny.spec.cache_groups for layer in group.layers}
        assert {"full"} < set(kinds.values())
        for layer, kept in enumerate(run.kv.layers):
            assert all((each.dtype is FLOAT8) == (kinds[layer] == "full") for each in kept)


def test_a_preempted_crowd_says_what_transformers_says(llama: TinyModel) -> None:
    model = build(llama)
    prompts = [make_prompt(length, seed=length) for length in (30, 9, 44, 17)]
    served = Served(model, lambda limits: TorchRunner(model, limits), num_blocks=8, max_num_seqs=4)
    texts = served.texts(prompts, [GREEDY] * len(prompts))
    assert served.has_preempted
    reference = Rounding(llama.reference, model)
    assert all(is_greedy(reference, prompt, text) for prompt, text in zip(prompts, texts, strict=True))


def test_a_cached_prefix_and_drafts_change_nothing(llama: TinyModel) -> None:
    model = build(llama)
    prompt = make_prompt(10, seed=3) * 4
    alone = Served(model, lambda limits: TorchRunner(model, limits))
    first = alone.answers([prompt], [GREEDY])[0].tokens
    again = alone.answers([prompt], [GREEDY])[0].tokens
    assert alone.engine.state().prefix_hits >= 32
    drafting = Served(model, lambda limits: TorchRunner(model, limits, NGramDrafter()), max_width=4)
    assert first == again == drafting.answers([prompt], [GREEDY])[0].tokens
    assert drafting.engine.state().drafted_rows > 0


def test_bits_depend_on_nothing_else_where_that_is_promised(llama: TinyModel) -> None:
    model = build(llama)
    model.is_invariant = True
    prompts = [make_prompt(length, seed=length) for length in (33, 20, 5)]
    together, alone = PagedRun.start(model, prompts), PagedRun.start(model, prompts[:1])
    whole = alone.step((33,))[0]
    parts = [together.step(counts)[0] for counts in ((16, 20, 2), (17, 0, 3))]
    assert torch.equal(torch.cat(parts), whole)


def test_rounding_by_arithmetic_is_that_of_the_numbers() -> None:
    numbers = torch.randn(5000) * torch.exp2(torch.randint(-14, 10, (5000,)).float())
    assert torch.equal(rounded(numbers, torch.ones(())), numbers.clamp(-448, 448).to(FLOAT8).float())
