"""`LLM` as trainers in the same process use it: weights changed, memory freed, prompts of token ids."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.errors import BadValueError, ConflictError
from nanoserve.ports.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = [5, 6, 7, 8]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", dtype="float32", max_model_len=256, kv_memory="16MiB") as made:
        yield made


def ids(llm: LLM) -> list[int]:
    (output,) = llm.generate({"prompt_token_ids": PROMPT}, GREEDY, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def test_weights_come_from_an_iterator_and_what_is_wrong_changes_nothing(llm: LLM) -> None:
    before = ids(llm)
    tensors = load_file(pathlib.Path(model_folder()) / "model.safetensors")
    name = "model.norm.weight"
    torch.manual_seed(0)
    changed = {**tensors, name: tensors[name] * (1 + 2 * torch.randn(tensors[name].shape))}
    facts = llm.update_weights(iter(changed.items()), label="mine")
    assert (facts.version, facts.label) == (1, "mine")
    after = ids(llm)
    assert after != before
    with pytest.raises(BadValueError, match="not finite"):
        llm.update_weights({**changed, name: torch.full_like(tensors[name], torch.nan)}.items())
    with pytest.raises(BadValueError, match="were not sent"):
        llm.update_weights({name: tensors[name]}.items())
    assert ids(llm) == after
    assert llm.update_weights(model_folder()).version == 2
    assert ids(llm) == before


def test_weights_that_no_folder_has_are_sent_anew_after_a_deep_sleep(llm: LLM) -> None:
    before = ids(llm)
    tensors = load_file(pathlib.Path(model_folder()) / "model.safetensors")
    name = "model.norm.weight"
    changed = {**tensors, name: tensors[name] * torch.linspace(0.2, 3, len(tensors[name]))}
    llm.update_weights(iter(changed.items()))
    after = ids(llm)
    assert after != before
    llm.sleep(1)
    llm.wake_up()
    assert ids(llm) == after
    llm.sleep(2)
    llm.wake_up(["weights"])
    llm.wake_up(["kv_cache"])
    with pytest.raises(ConflictError, match="send all weights"):
        ids(llm)
    with pytest.raises(BadValueError, match="send all"):
        llm.update_weights({name: tensors[name]}.items(), partial=True)
    with pytest.raises(BadValueError, match="were not sent"):
        llm.update_weights({name: tensors[name]}.items())
    llm.sleep(2)
    llm.wake_up()
    llm.update_weights(iter(changed.items()))
    assert ids(llm) == after
    llm.update_weights(model_folder())
    assert ids(llm) == before


def test_a_paused_or_sleeping_one_refuses_prompts(llm: LLM) -> None:
    before = ids(llm)
    llm.pause()
    with pytest.raises(ConflictError, match="paused or asleep"):
        ids(llm)
    llm.resume()
    llm.sleep(2)
    with pytest.raises(ConflictError, match="is already asleep"):
        llm.sleep()
    llm.wake_up(["weights"])
    with pytest.raises(ConflictError, match="paused or asleep"):
        ids(llm)
    llm.wake_up(["kv_cache"])
    assert ids(llm) == before
