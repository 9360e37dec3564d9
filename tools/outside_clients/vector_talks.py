"""The talks of `tools.outside_clients.vectors`; needs nothing of nanoserve, only the clients, two URLs and the numbers that are right."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import cohere
from langchain_cohere import CohereRerank
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaRerank

MODEL, KEY = "model", "none"


def check(found: Sequence[float], wanted: Sequence[float], limit: float) -> None:
    """Raises `ValueError` where a number is further than `limit` from what it must be."""
    if max(abs(a - b) for a, b in zip(found, wanted, strict=True)) > limit:
        raise ValueError(f"got {found}, wanted {wanted}")


def main() -> None:
    """Run each talk; ends with the number of those that failed."""
    embedder, ranker, told = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    query, texts, scores = told["query"], told["texts"], told["scores"]
    order = sorted(range(len(texts)), key=lambda place: -scores[place])
    ranked = [scores[place] for place in order]

    def vectors_of(client: Any, several: str, one: str) -> None:
        for found, wanted in zip(
            [*getattr(client, several)(texts), getattr(client, one)(query)], told["vectors"], strict=True
        ):
            check(found, wanted, 1e-5)

    def ranked_by(results: Any) -> None:
        assert [each.index for each in results] == order
        check([each.relevance_score for each in results], ranked, 1e-4)

    def langchain_ranks() -> None:
        client = cohere.ClientV2(KEY, base_url=ranker)
        found = CohereRerank(client=client, model=MODEL, cohere_api_key=KEY).rerank(texts, query)
        check([each["relevance_score"] for each in found], ranked, 1e-4)

    def llama_index_ranks() -> None:
        client = LlamaRerank(api_key=KEY, model=MODEL, base_url=ranker, top_n=len(texts))
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
        check([each.score for each in client.postprocess_nodes(nodes, query_str=query)], ranked, 1e-4)

    url = f"{embedder}/v1"
    talks = {
        "LangChain's vectors": lambda: vectors_of(
            OpenAIEmbeddings(model=MODEL, base_url=url, api_key=KEY, check_embedding_ctx_length=False),
            "embed_documents",
            "embed_query",
        ),
        "LlamaIndex's vectors": lambda: vectors_of(
            OpenAILikeEmbedding(model_name=MODEL, api_base=url, api_key=KEY),
            "get_text_embedding_batch",
            "get_query_embedding",
        ),
        "Cohere's scores": lambda: ranked_by(
            cohere.ClientV2(KEY, base_url=ranker).rerank(model=MODEL, query=query, documents=texts).results
        ),
        "Cohere's scores, first form": lambda: ranked_by(
            cohere.Client(KEY, base_url=ranker).rerank(model=MODEL, query=query, documents=texts).results
        ),
        "LangChain's scores": langchain_ranks,
        "LlamaIndex's scores": llama_index_ranks,
    }
    sys.exit(sum(not is_fine(name, talk) for name, talk in talks.items()))


def is_fine(name: str, talk: Callable[[], None]) -> bool:
    """Run a talk, and say how it went."""
    try:
        talk()
    except Exception:  # noqa: BLE001 a client may fail in any way
        traceback.print_exc()
        print(f"{name}: failed", flush=True)
        return False
    print(name, flush=True)
    return True


if __name__ == "__main__":
    main()
