"""The `LLM` class over a real model, against transformers on the same weights."""

from __future__ import annotations

import pytest

from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.entrypoints.offline import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The little fox", "A storm came over the hills and", "“Hello,” said"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def reference(folder: str) -> HFReferenceModel:
    return HFReferenceModel(folder)


@pytest.fixture(scope="module")
def exact() -> LLM:
    return LLM(dtype="float32", threads=1, max_num_seqs=3, max_num_batched_tokens=16, paranoid=True)


def test_the_library_says_nothing_on_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(threads=1, max_model_len=64) as llm:
        llm.generate("Once upon a time", GREEDY)
    assert capfd.readouterr() == ("", "")


def test_greedy_equals_transformers_token_for_token(exact: LLM, reference: HFReferenceModel) -> None:
    outputs = exact.generate(PROMPTS, GREEDY)
    for output in outputs:
        expected = reference.greedy(output.prompt_token_ids, max_tokens=24)
        assert output.outputs[0].token_ids == expected
        assert output.outputs[0].finish_reason == "length"
