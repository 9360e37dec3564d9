"""Vectors of texts equal those of sentence-transformers: alone, in a crowd, in chunks, behind cached prefixes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams
from tests.process.embedding_models import PROMPTS, make_embedding_model

TEXTS = ["One fox.", "The river is long, and the fox is old. " * 6, "An", "Once upon a time", "One fox runs."]
SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu"}


def assert_alike(found: list[list[float]], expected: Any) -> None:
    """In direction (cosine >= 0.9999), and number by number."""
    ours, theirs = np.array(found), np.array(expected)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() >= 0.9999
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.fixture(scope="module", params=["lasttoken", "mean", "cls"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(mode: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp(mode)
    return make_embedding_model(folder, mode, normalized=mode != "cls"), str(folder / "model")


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 3, "block_size": 4}])
def test_vectors_are_those_of_sentence_transformers(made: tuple[Any, str], settings: dict[str, Any]) -> None:
    reference, folder = made
    with LLM(folder, **SETTINGS, **settings) as llm:
        for _ in range(2):  # the second time over cached prefixes, where the pooling allows that
            outputs = llm.embed(TEXTS, use_tqdm=False)
            assert_alike([each.embedding for each in outputs], reference.encode(TEXTS))
        hits = outputs[1].num_cached_tokens
        assert bool(hits) == (reference[1].pooling_mode == "lasttoken")
        ids = outputs[1].prompt_token_ids
        assert ids[-1] == llm.get_tokenizer().eos_token_ids[0]
        assert_alike([llm.embed([ids])[0].embedding], reference.encode(TEXTS[1:2]))


def test_prompts_and_dimensions_are_those_of_sentence_transformers(made: tuple[Any, str]) -> None:
    reference, folder = made
    with LLM(folder, **SETTINGS) as llm:
        for name in PROMPTS:
            outputs = llm.embed(TEXTS, prompt_name=name)
            assert_alike([each.embedding for each in outputs], reference.encode(TEXTS, prompt_name=name))
        cut = [each.embedding for each in llm.embed(TEXTS, dimensions=20)]
        is_normalized = len(reference) == 3
        assert_alike(cut, reference.encode(TEXTS, truncate_dim=20, normalize_embeddings=is_normalized))
        with pytest.raises(
            BadValueError, match="prompt_name: 'title' is not one of the model's; known: document, query"
        ):
            llm.embed("One", prompt_name="title")
        with pytest.raises(BadValueError, match=r"dimensions: must be from 1 to 48, got 49"):
            llm.embed("One", dimensions=49)
        with pytest.raises(BadValueError, match=r"model: makes vectors of texts and writes none"):
            llm.generate("One", SamplingParams(max_tokens=2))
        with pytest.raises(BadValueError, match=r"prompts\[1\]"):
            llm.embed([[1], [1 << 40]])


def test_a_default_prompt_stands_before_texts_of_which_nothing_is_said(tmp_path: pathlib.Path) -> None:
    reference = make_embedding_model(tmp_path, default="query")
    with LLM(tmp_path / "model", **SETTINGS) as llm:
        found = [each.embedding for each in llm.embed(TEXTS)]
    assert_alike(found, reference.encode(TEXTS))
    assert_alike(found, reference.encode([PROMPTS["query"] + text for text in TEXTS], prompt_name="document"))


def test_a_model_that_writes_text_makes_vectors_only_where_it_is_told_to(llm: LLM) -> None:
    with pytest.raises(BadValueError, match=r"model: writes text and makes no vectors"):
        llm.embed("One")
    with LLM(task="embed", threads=1) as told:
        (output,) = told.embed("One fox")
        assert sum(each * each for each in output.embedding) == pytest.approx(1.0)


def test_the_command_prints_a_line_of_json_for_each_text(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = make_embedding_model(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:3]))
    options = ["--model", str(tmp_path / "model"), "--dtype", "float32", "--threads", "1"]
    named = ["--prompt-name", "query", "--dimensions", "7"]
    assert run_command(["embed", "--file", str(tmp_path / "texts.txt"), *named, *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["id"] for each in lines] == [0, 1, 2]
    expected = reference.encode(TEXTS[:3], prompt_name="query", truncate_dim=7, normalize_embeddings=True)
    assert_alike([each["embedding"] for each in lines], expected)
    assert run_command(["embed", "One fox", *options, "--dimensions", "0"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "dimensions: must be from 1 to 48, got 0" in shown.err
