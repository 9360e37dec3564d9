"""Ranked documents, scores of pairs, classes and raw vectors over HTTP, over a scripted model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.entrypoints.app.orders import Conversation, ServiceSettings
from nanoserve.entrypoints.app.vectors import INSTRUCTION, pair_prompts
from nanoserve.ports.pooling import Activation, PoolerSpec, Pooling, PoolingKind, Task
from tests.unit.entrypoints.scripted_world import LETTERS, LetterTemplate
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

EMBED = PoolerSpec(task=Task.EMBED, width=2, prompts={"query": "q ", "document": ""})
CLASSIFY = PoolerSpec(task=Task.CLASSIFY, pooling=Pooling(), labels=("bad", "good"))
RERANK = PoolerSpec(task=Task.RERANK, pooling=Pooling(token_ids=(1, 2)))


@contextlib.contextmanager
def serving(pooler: PoolerSpec) -> Iterator[AppWorld]:
    with app_world(service=ServiceSettings(model_names=("scores",), pooler=pooler)) as started:
        yield started


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    with serving(EMBED) as started:
        yield started


def vector(text: str) -> tuple[float, float]:
    return float(len(text)), float(LETTERS.index(text[-1]))


def cosine(query: str, document: str) -> float:
    (a, b), (c, d) = vector(f"q {query}"), vector(document)
    return (a * c + b * d) / math.hypot(a, b) / math.hypot(c, d)


def ask(world: AppWorld, path: str, **body: Any) -> Any:
    with world.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(world: AppWorld, path: str, **body: Any) -> str:
    with world.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_the_order_of_their_scores(world: AppWorld, path: str) -> None:
    documents = ["a", "zzz", "mm", "a long one"]
    found = ask(world, path, model="scores", query="fox", documents=[*documents[:3], {"text": documents[3]}])
    scores = [cosine("fox", each) for each in documents]
    order = sorted(range(4), key=lambda place: -scores[place])
    assert [each["index"] for each in found["results"]] == order
    assert [each["relevance_score"] for each in found["results"]] == pytest.approx(
        [scores[each] for each in order]
    )
    assert [each["document"]["text"] for each in found["results"]] == [documents[each] for each in order]
    assert found["model"] == "scores"
    count = len("q fox") + sum(map(len, documents))
    assert found["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_the_first_documents_alone_and_without_their_texts(world: AppWorld) -> None:
    found = ask(world, "/v1/rerank", query="f", documents=["a", "z"], top_n=1, return_documents=False)
    (only,) = found["results"]
    assert set(only) == {"index", "relevance_score"}
    assert ask(world, "/v1/rerank", query="f", documents=[])["results"] == []


def test_pairs_are_one_with_all_or_each_with_its_own(world: AppWorld) -> None:
    found = ask(world, "/v1/score", text_1="fox", text_2=["a", "zz"])
    assert [each["score"] for each in found["data"]] == pytest.approx(
        [cosine("fox", "a"), cosine("fox", "zz")]
    )
    found = ask(world, "/score", text_1=["fox", "b"], text_2=["a", "zz"])
    assert [each["score"] for each in found["data"]] == pytest.approx([cosine("fox", "a"), cosine("b", "zz")])
    assert ask(world, "/score", text_1="b", text_2="c")["data"][0]["object"] == "score"
    assert "must hold as many texts as text_1 (2), got 3" in refusal(
        world, "/score", text_1=["a", "b"], text_2=["a", "b", "c"]
    )


def test_vectors_are_given_as_they_were_pooled(world: AppWorld) -> None:
    found = ask(world, "/pooling", input=["fox", [0, 1]])
    assert [each["data"] for each in found["data"]] == [[3.0, 23.0], [2.0, 1.0]]
    assert "makes vectors of texts" in refusal(world, "/classify", input="a")
    assert "top_n: must be at least 1" in refusal(world, "/rerank", query="a", documents=["b"], top_n=0)
    assert "instruction: is for models that rerank" in refusal(
        world, "/rerank", query="a", documents=["b"], instruction="c"
    )
    assert "documents: is empty" in refusal(world, "/rerank", query="a", documents=[""])


def test_classes_have_a_label_and_a_number_for_each() -> None:
    with serving(CLASSIFY) as classifier:
        found = ask(classifier, "/classify", input=["ab", "abc", "a"])["data"]
        weights = [[math.exp(each) for each in pooled] for pooled in ((2.0, 1.0), (3.0, 2.0), (1.0, 0.0))]
        assert [each["probs"] for each in found] == [
            pytest.approx([each / sum(pair) for each in pair]) for pair in weights
        ]
        assert [(each["index"], each["label"], each["num_classes"]) for each in found] == [
            (place, "bad", 2) for place in range(3)
        ]
        assert ask(classifier, "/pooling", input="ab")["data"][0]["data"] == [2.0, 1.0]
        assert "classifies texts" in refusal(classifier, "/v1/embeddings", input="a")
        assert "classifies texts" in refusal(classifier, "/v1/completions", prompt="a")


def test_a_reranker_is_asked_by_its_template() -> None:
    with serving(RERANK) as reranker:
        found = ask(reranker, "/v1/rerank", query="fox", documents=["a", "bb"], instruction="say so")
        prompts = [pair_prompts(RERANK, "fox", each, "say so")[0] for each in ("a", "bb")]
        ids = [LetterTemplate().render(each.messages) for each in prompts if isinstance(each, Conversation)]
        expected = [1 / (1 + math.exp(len(each) - each[-1])) for each in ids]
        by_place = sorted(found["results"], key=lambda each: each["index"])
        assert [each["relevance_score"] for each in by_place] == pytest.approx(expected, rel=1e-9, abs=0.0)
        assert "judges documents" in refusal(reranker, "/pooling", input="a")
    (plain,) = pair_prompts(RERANK, "a", "b", None)
    assert isinstance(plain, Conversation)
    assert plain.messages[1]["content"] == f"<Instruct>: {INSTRUCTION}\n<Query>: a\n<Document>: b"


def test_no_writer_of_text_scores() -> None:
    with app_world() as plain:
        for path, body in (
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
            ("/classify", {"input": "a"}),
            ("/pooling", {"input": "a"}),
        ):
            assert "writes text and makes no vectors: start one that does" in refusal(plain, path, **body)


def test_a_classifier_with_one_class_scores_pairs_together() -> None:
    crossing = PoolerSpec(task=Task.CLASSIFY, labels=("score",), activation=Activation.NONE)
    with serving(crossing) as cross:
        documents = ["a", "zzz", "mm"]
        found = ask(cross, "/v1/rerank", query="fox", documents=documents, top_n=2)
        assert [each["index"] for each in found["results"]] == [1, 2]
        assert found["results"][0]["relevance_score"] == LETTERS.index("z")
        assert found["usage"]["prompt_tokens"] == sum(len("fox" + each) for each in documents)
        cut = ask(cross, "/v1/score", text_1="fox", text_2=["abc", "b"], truncate_prompt_tokens=4)
        assert [each["score"] for each in cut["data"]] == [0.0, 1.0]
        assert cut["usage"]["prompt_tokens"] == 8
        assert "instruction" in refusal(cross, "/v1/score", text_1="a", text_2="b", instruction="say so")
        assert "truncate_prompt_tokens" in refusal(cross, "/classify", input="a", truncate_prompt_tokens=0)
    with serving(CLASSIFY) as several:
        assert "pairs are scored by a model with one" in refusal(several, "/v1/score", text_1="a", text_2="b")


def test_classes_of_tokens_come_one_by_one() -> None:
    pooling = Pooling(kind=PoolingKind.ALL)
    with serving(PoolerSpec(task=Task.TOKEN_CLASSIFY, pooling=pooling, labels=("O", "NAME"))) as tokens:
        (found,) = ask(tokens, "/pooling", input="abd", task="token_classify")["data"]
        numbers = [[3.0, 0.0], [1.0, 3.0]]
        assert found["labels"] == ["O", "NAME"]
        expected = [[1 / (1 + math.exp(b - a)), 1 / (1 + math.exp(a - b))] for a, b in numbers]
        assert found["data"] == [pytest.approx(each) for each in expected]
        raw = ask(tokens, "/pooling", input="abd", use_activation=False)["data"][0]
        assert raw["data"] == numbers
        assert "classifies tokens" in refusal(tokens, "/classify", input="a")
        assert "classifies tokens" in refusal(tokens, "/v1/score", text_1="a", text_2="b")
        assert "classifies tokens" in refusal(tokens, "/pooling", input="a", task="embed")
    with serving(CLASSIFY) as classifier:
        scores = ask(classifier, "/pooling", input="ab", use_activation=True)["data"][0]["data"]
        assert sum(scores) == pytest.approx(1.0)
    with serving(EMBED) as embedding:
        assert "use_activation" in refusal(embedding, "/pooling", input="a", use_activation=True)
