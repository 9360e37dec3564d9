"""Adapters of the `LLM` class: one for all prompts or one each, loaded and unloaded between calls."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import BadValueError, UnknownModelError
from tests.served import is_greedy

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = ["Once upon a time", "One morning", "The fox"]


@pytest.fixture(scope="module")
def base() -> Any:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def adapters(base: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folders by name, with what PEFT makes of base and adapter."""
    import peft  # noqa: PLC0415 - takes a second

    made = {}
    for seed, name in enumerate(("left", "right")):
        folder = tmp_path_factory.mktemp(name)
        config = peft.LoraConfig(
            r=4 + 4 * seed, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]
        )
        torch.manual_seed(seed)  # for both factors: the first is drawn as the model is made
        model: Any = peft.get_peft_model(copy.deepcopy(base), config)
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                if "lora_B" in key:
                    tensor.normal_(std=0.3)
        model.save_pretrained(str(folder))
        made[name] = folder, model.merge_and_unload()
    return made


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "two ranks"])
def llm(adapters: dict[str, tuple[Path, Any]], request: pytest.FixtureRequest) -> Iterator[LLM]:
    lora = {"left": adapters["left"][0]}
    ranks: dict[str, Any] = {"tensor_parallel_size": request.param}
    with LLM(dtype="float32", max_loras=2, lora=lora, paranoid=True, threads=1, **ranks) as made:
        yield made


def test_prompts_have_adapters_of_their_own_or_none(
    llm: LLM, base: Any, adapters: dict[str, tuple[Path, Any]]
) -> None:
    llm.load_lora("right", adapters["right"][0])
    models: dict[str | None, Any] = {name: merged for name, (_, merged) in adapters.items()}
    models[None] = base
    names = ["left", None, "right"]
    texts = set()
    for asked in (names, "right", None):
        outputs = llm.generate(PROMPTS, GREEDY, lora=asked)
        for name, output in zip(asked if isinstance(asked, list) else [asked] * 3, outputs, strict=True):
            assert is_greedy(models[name], output.prompt_token_ids, output.outputs[0].token_ids)
        texts.add(tuple(output.outputs[0].text for output in outputs))
    assert len(texts) == 3
    llm.unload_lora("right")
    with pytest.raises(BadValueError, match="no adapter 'right' is loaded"):
        llm.generate(PROMPTS[0], GREEDY, lora="right")


def test_conversations_have_them_too(llm: LLM, adapters: dict[str, tuple[Path, Any]]) -> None:
    talk = [{"role": "user", "content": "What is the colour of the sky?"}]
    (output,) = llm.chat(talk, GREEDY, lora="left")
    assert is_greedy(adapters["left"][1], output.prompt_token_ids, output.outputs[0].token_ids)


def test_wrong_names_and_counts_are_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="no adapter 'middle' is loaded; loaded: left"):
        llm.generate(PROMPTS[0], GREEDY, lora="middle")
    with pytest.raises(BadValueError, match="one per prompt"):
        llm.generate(PROMPTS, GREEDY, lora=["left"])
    with pytest.raises(UnknownModelError):
        llm.unload_lora("middle")
    with pytest.raises(BadValueError, match="is this a PEFT adapter's folder"):
        llm.load_lora("middle", tmp_path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lora": {"a": "x"}, "max_loras": 0}, "must be at least 1 if --lora names adapters"),
        ({"lora": {"a": "x,y"}}, "takes NAME=FOLDER"),
        ({"lora": {"a b": "x"}}, "takes NAME=FOLDER"),
        ({"lora": {"a": "/nowhere"}}, "is this a PEFT adapter's folder"),
        ({"max_loras": 1, "max_lora_rank": 129}, "128"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadValueError, match=reason):
        LLM(device="cpu", **settings)


def test_deterministic_rows_of_one_request_have_an_adapter_and_end_at_a_text(
    adapters: dict[str, tuple[Path, Any]],
) -> None:
    asking = SamplingParams(
        temperature=1.0,
        seed=3,
        n=3,
        max_tokens=36,
        stop=["a", "."],
        min_tokens=3,
        logprobs=1,
        deterministic=True,
    )
    beside = SamplingParams(temperature=1.0, seed=4, max_tokens=36, ignore_eos=True)
    found = []
    for throughout in (True, False):
        settings: dict[str, Any] = {"lora": {"left": adapters["left"][0]}, "deterministic": throughout}
        with LLM(threads=1, **settings) as made:
            some = made.generate(PROMPTS, [asking, asking, beside], lora=["left", None, "left"])
        found.append([answer for each in some[:2] for answer in each.outputs])
    assert found[0] == found[1]
    assert {each.finish_reason for each in found[0]} == {"stop"}
    assert len({each.text for each in found[0]}) > 3
