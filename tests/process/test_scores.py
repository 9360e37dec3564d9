"""Classes and scores of texts equal those of transformers."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nanoserve.entrypoints.app.vectors import INSTRUCTION
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.errors import BadValueError
from tests.process.embedding_models import make_classifier, make_embedding_model, make_writer

TEXTS = ["One fox.", "The river is long, and the fox is old. " * 6, "An", "Once upon a time"]
SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu"}
QUERY = "Who lives in the wood?"
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}},
        {"num_labels": 2, "problem_type": "multi_label_classification"},
        {"num_labels": 1, "problem_type": "regression"},
    ],
)
def test_classes_are_those_of_transformers(tmp_path: pathlib.Path, config: dict[str, Any]) -> None:
    tokenizer, model = make_classifier(tmp_path, **config)
    with torch.inference_mode():
        logits = [model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0] for text in TEXTS]
    problem = config.get("problem_type")
    if problem is None:
        logits = [each.softmax(0) for each in logits]
    elif problem != "regression":
        logits = [each.sigmoid() for each in logits]
    with LLM(tmp_path, **SETTINGS, max_num_batched_tokens=24, max_num_seqs=3) as llm:
        for _ in range(2):
            outputs = llm.classify(TEXTS, use_tqdm=False)
            for output, expected in zip(outputs, logits, strict=True):
                assert list(output.scores.values()) == pytest.approx(expected.tolist(), abs=1e-4)
                assert output.label == model.config.id2label[int(expected.argmax())]
        for refused in (llm.generate, llm.embed):
            with pytest.raises(BadValueError, match="model: classifies texts and writes none"):
                refused("One")
        if len(logits[0]) > 1:
            with pytest.raises(BadValueError, match="pairs are scored by a model with one"):
                llm.score("One", "two")


@pytest.mark.parametrize(("kind", "count"), [("ForRewardModel", 1), ("ForProcessRewardModel", 2)])
def test_rewards_are_what_two_layers_make_of_states(tmp_path: pathlib.Path, kind: str, count: int) -> None:
    """As in Qwen's own code: of the last state, or of each token's as probabilities that a step is wrong or right."""
    tokenizer, model = make_classifier(tmp_path, num_labels=1)
    hidden = model.config.hidden_size
    score = torch.nn.Sequential(
        torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, count)
    )
    tensors = {name: each for name, each in model.state_dict().items() if not name.startswith("score.")}
    tensors |= {f"score.{name}": each.detach() for name, each in score.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": [f"Qwen3{kind}"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": None}))
    with torch.inference_mode():
        states = [
            model.model(torch.tensor([tokenizer(each)["input_ids"]])).last_hidden_state[0] for each in TEXTS
        ]
        rewards = [score(each) for each in states]
    with LLM(tmp_path, **SETTINGS) as llm:
        if count == 1:
            for output, expected in zip(llm.classify(TEXTS, use_tqdm=False), rewards, strict=True):
                assert output.scores["LABEL_0"] == pytest.approx(float(expected[-1, 0]), abs=1e-4)
            return
        for found, expected in zip(llm.classify_tokens(TEXTS, use_tqdm=False), rewards, strict=True):
            wanted = expected.softmax(-1)
            assert [list(each.values()) for each in found.scores] == [
                pytest.approx(each, abs=1e-4) for each in wanted.tolist()
            ]


def test_a_reranker_is_asked_in_its_template(tmp_path: pathlib.Path) -> None:
    tokenizer, model, words = make_writer(tmp_path / "model")
    expected = []
    for instruction, text in [*((INSTRUCTION, text) for text in TEXTS), ("Say so", TEXTS[0])]:
        prompt = (
            f"<|system|>\n{JUDGE}<|end|>\n"
            f"<|user|>\n<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {text}<|end|>\n"
            "<|assistant|>\n<think></think>"
        )
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        expected.append(float(logits[[*words]].softmax(0)[1]))
    with LLM(tmp_path / "model", **SETTINGS, task="rerank") as llm:
        found = [*llm.score(QUERY, TEXTS), *llm.score([QUERY], TEXTS[0], instruction="Say so")]
        assert found == pytest.approx(expected, abs=1e-4)
        with pytest.raises(BadValueError, match="model: judges documents by queries"):
            llm.embed("One")
        with pytest.raises(BadValueError, match=r"must hold as many texts as text_1 \(2\), got 4"):
            llm.score(["a", "b"], TEXTS)


def test_a_model_that_makes_vectors_scores_by_their_cosine(tmp_path: pathlib.Path) -> None:
    reference = make_embedding_model(tmp_path, "mean", normalized=False)
    expected = reference.similarity(reference.encode_query([QUERY]), reference.encode_document(TEXTS))[0]
    with LLM(tmp_path / "model", **SETTINGS) as llm:
        assert llm.score(QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=1e-5)
        with pytest.raises(BadValueError, match="instruction: is for models that rerank"):
            llm.score(QUERY, TEXTS, instruction="Say so")
