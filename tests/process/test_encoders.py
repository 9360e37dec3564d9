"""Encoders equal transformers and sentence-transformers: vectors, scores of pairs, classes of texts and of tokens."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoserve.entrypoints.compose.bootstrap import assemble_for_verification
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.process.encoder_models import FAMILIES, TEXTS, make_encoder, make_vectors, run

SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu"}
CROWD: dict[str, Any] = {"max_num_batched_tokens": 150, "max_model_len": 120, "max_num_seqs": 3}
QUERY = "Who lives in the wood?"


def assert_alike(found: Sequence[Any], expected: torch.Tensor) -> None:
    ours = torch.tensor([each.embedding for each in found])
    assert torch.cosine_similarity(ours, expected).min() >= 0.9999
    assert (ours - expected).abs().max() < 1e-5


@pytest.mark.parametrize("mode", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: pathlib.Path, family: str, mode: str) -> None:
    reference = make_vectors(tmp_path, family, mode)
    with LLM(tmp_path / "model", **SETTINGS, **CROWD) as llm:
        for name in (None, "query"):
            expected = torch.tensor(reference.encode(TEXTS, prompt_name=name))
            assert_alike(llm.embed(TEXTS, prompt_name=name, use_tqdm=False), expected)
        again = llm.embed(TEXTS, prompt_name="query", use_tqdm=False)
        assert_alike(again, expected)
        assert all(each.num_cached_tokens == 0 for each in again)


def test_layers_behind_a_pooler_are_computed(tmp_path: pathlib.Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense  # noqa: PLC0415 - takes seconds

    torch.manual_seed(3)
    dense = [Dense(48, 32), Dense(32, 20, bias=False, activation_function=torch.nn.Identity())]
    reference = make_vectors(tmp_path, "bert", "mean", dense=dense, normalized=False)
    with LLM(tmp_path / "model", **SETTINGS) as llm:
        found = llm.embed(TEXTS, use_tqdm=False)
        assert len(found[0].embedding) == 20
        assert_alike(found, torch.tensor(reference.encode(TEXTS)))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_pairs_are_those_of_a_cross_encoder(tmp_path: pathlib.Path, family: str) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - takes seconds

    tokenizer, model = make_encoder(tmp_path, family, "ForSequenceClassification", num_labels=1)
    logits = [run(tokenizer, model, QUERY, text).logits[0, 0] for text in TEXTS]
    reference = CrossEncoder(str(tmp_path), device="cpu").predict([(QUERY, text) for text in TEXTS])
    with LLM(tmp_path, **SETTINGS, **CROWD) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)
        assert found == pytest.approx([float(each.sigmoid()) for each in logits], abs=1e-4)
        assert found == pytest.approx(reference.tolist(), abs=1e-4)
        assert max(found) - min(found) > 1e-3
        swapped = float(run(tokenizer, model, TEXTS[0], QUERY).logits.sigmoid())
        assert llm.score(TEXTS[0], QUERY, use_tqdm=False) == pytest.approx([swapped], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_are_those_of_transformers(tmp_path: pathlib.Path, family: str) -> None:
    more = {"classifier_pooling": "mean", "norm_bias": True} if family == "modernbert" else {}
    tokenizer, model = make_encoder(tmp_path, family, "ForSequenceClassification", num_labels=3, **more)
    with LLM(tmp_path, **SETTINGS, **CROWD) as llm:
        for output, text in zip(llm.classify(TEXTS, use_tqdm=False), TEXTS, strict=True):
            expected = run(tokenizer, model, text).logits[0].softmax(0)
            assert list(output.scores.values()) == pytest.approx(expected.tolist(), abs=1e-4)
            assert output.label == f"LABEL_{int(expected.argmax())}"
        with pytest.raises(BadValueError, match="has 3 classes, and pairs are scored by a model with one"):
            llm.score(QUERY, TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_of_tokens_are_those_of_transformers(tmp_path: pathlib.Path, family: str) -> None:
    tokenizer, model = make_encoder(tmp_path, family, "ForTokenClassification", num_labels=3)
    with LLM(tmp_path, **SETTINGS, **CROWD) as llm:
        for output, text in zip(llm.classify_tokens(TEXTS, use_tqdm=False), TEXTS, strict=True):
            expected = run(tokenizer, model, text).logits[0].softmax(-1)
            found = torch.tensor([list(each.values()) for each in output.scores])
            assert (found - expected).abs().max() < 1e-4
            assert output.labels == [f"LABEL_{each}" for each in expected.argmax(-1).tolist()]
            assert output.prompt_token_ids == tokenizer(text)["input_ids"]
        with pytest.raises(BadValueError, match="model: classifies tokens and writes none"):
            llm.classify("A fox")


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_text_has_the_same_vector_in_any_company(tmp_path: pathlib.Path, *, deterministic: bool) -> None:
    make_encoder(tmp_path, "modernbert")
    with LLM(tmp_path, **SETTINGS, deterministic=deterministic) as llm:
        alone = [llm.embed(text, use_tqdm=False)[0].embedding for text in TEXTS]
        together = [each.embedding for each in llm.embed(TEXTS * 2, use_tqdm=False)]
    if deterministic:
        assert together == alone * 2
    assert torch.tensor(together).sub(torch.tensor(alone * 2)).abs().max() < 1e-5


def test_long_texts_are_refused_or_cut_as_the_request_says(tmp_path: pathlib.Path) -> None:
    tokenizer, model = make_encoder(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    long = "the fox is old " * 60
    with LLM(tmp_path, **SETTINGS) as llm:
        with pytest.raises(BadValueError, match="tokens and the context holds 128"):
            llm.score(QUERY, long)
        cut = tokenizer(QUERY, long, truncation=True, max_length=40, return_tensors="pt")
        with torch.inference_mode():
            expected = float(model(**cut).logits.sigmoid())
        found = llm.score(QUERY, long, truncate_prompt_tokens=40, use_tqdm=False)
        assert found == pytest.approx([expected], abs=1e-4)
        with pytest.raises(
            BadValueError, match="truncate_prompt_tokens: must be more than the 3 special tokens"
        ):
            llm.score(QUERY, long, truncate_prompt_tokens=3)


def test_what_an_encoder_cannot_do_is_one_error(tmp_path: pathlib.Path) -> None:
    make_encoder(tmp_path, "roberta")
    with LLM(tmp_path, **SETTINGS) as llm:
        for asked in (llm.generate, llm.classify, llm.classify_tokens):
            with pytest.raises(BadValueError, match="model: makes vectors of texts and writes none"):
                asked("A fox")
        with pytest.raises(BadValueError, match="dimensions: must be 48: this model's vectors cannot be cut"):
            llm.embed("A fox", dimensions=12)
        assert len(llm.embed("A fox", dimensions=48, use_tqdm=False)[0].embedding) == 48
    with pytest.raises(ModelLoadError, match="--task is generate, and an encoder writes no text"):
        LLM(tmp_path, **SETTINGS, task="generate")
    with pytest.raises(BadValueError, match="model: is an encoder, which writes no text to compare"):
        assemble_for_verification(EngineSettings(model=str(tmp_path)))
    with pytest.raises(
        BadValueError, match=r"max_num_batched_tokens: must be at least max_model_len \(128\)"
    ):
        LLM(tmp_path, **SETTINGS, max_num_batched_tokens=64)
