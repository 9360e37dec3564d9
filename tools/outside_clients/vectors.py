"""Clients of vectors and scores that other projects wrote, unchanged, against two real servers and beside the reference's numbers.

    python3 -m venv /tmp/clients
    /tmp/clients/bin/pip install cohere langchain-openai langchain-cohere \
        llama-index-embeddings-openai-like llama-index-postprocessor-cohere-rerank
    python -m tools.outside_clients.vectors /tmp/clients/bin/python

Runs `vector_talks.py` with that interpreter, from a checkout, and ends with the number of those that failed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Final

from tests.process.encoder_models import make_encoder, make_vectors, run
from tests.process.server_process import server_process

TALKS: Final = pathlib.Path(__file__).parent / "vector_talks.py"
QUERY: Final = "Who lives in the wood?"
TEXTS: Final = ["It rains.", "The river is long, and the fox is old."]
SETTINGS: Final = ("--dtype", "float32", "--max-model-len", "128", "--device", "cpu")


def main() -> None:
    """Serve an embedder and a cross-encoder, talk, and pass on how it ended."""
    parser = argparse.ArgumentParser(description="Clients of other projects against servers of vectors.")
    parser.add_argument("python", help="of an environment with the clients")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        first, second = pathlib.Path(name, "vectors"), pathlib.Path(name, "scores")
        first.mkdir()
        vectors = make_vectors(first, "bert", "cls").encode([*TEXTS, QUERY]).tolist()
        tokenizer, model = make_encoder(
            second / "model", "xlm-roberta", "ForSequenceClassification", num_labels=1
        )
        scores = [run(tokenizer, model, QUERY, text).logits.sigmoid().item() for text in TEXTS]
        with (
            server_process(first, str(first / "model"), *SETTINGS) as embedder,
            server_process(second, str(second / "model"), *SETTINGS) as ranker,
        ):
            for each in (embedder, ranker):
                each.wait_until_ready()
            told = {"query": QUERY, "texts": TEXTS, "vectors": vectors, "scores": scores}
            command = [given.python, TALKS, embedder.url, ranker.url, json.dumps(told)]
            done = subprocess.run(command, check=False)  # noqa: S603
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
