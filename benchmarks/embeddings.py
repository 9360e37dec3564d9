"""Texts a second of an encoder on a CPU, beside sentence-transformers on the same texts, weights and threads.

    python -m benchmarks.embeddings [--texts 64] [--tokens 128] [--mixed] [--threads 2] [--calls 5] [--layers 12]

The model has the shape of bge-base (BERT, 12 layers of 768) and random weights in float32, and pools by its first token. `--mixed` makes
texts of 8 to `--tokens` tokens. Both engines are loaded once and take turns; the best call of each counts, because others use the machine, too.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from nanoserve.entrypoints.offline import LLM

WORDS = 30_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_reference(folder: str, layers: int) -> SentenceTransformer:
    """Write the model to a folder, and return it."""
    module: Any = transformers
    pieces = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    tokenizer = module.BertTokenizer({piece: place for place, piece in enumerate(pieces)})
    tokenizer.save_pretrained(f"{folder}/base")
    module.BertModel(module.BertConfig(num_hidden_layers=layers)).save_pretrained(f"{folder}/base")
    parts: list[Any] = [Transformer(f"{folder}/base"), Pooling(768, pooling_mode="cls"), Normalize()]
    reference = SentenceTransformer(modules=parts, device="cpu")
    reference.save(f"{folder}/model")
    return reference


def make_texts(count: int, tokens: int, *, mixed: bool) -> list[str]:
    """Texts of so many tokens, two of which are special."""
    draw = random.Random(0)
    lengths = [draw.randint(8, tokens) if mixed else tokens for _ in range(count)]
    return [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(length - 2)) for length in lengths]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in (("texts", 64), ("tokens", 128), ("threads", 2), ("calls", 5), ("layers", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mixed", action="store_true")
    options = parser.parse_args()
    texts = make_texts(options.texts, options.tokens, mixed=options.mixed)
    with tempfile.TemporaryDirectory() as folder:
        reference = make_reference(folder, options.layers)
        with LLM(f"{folder}/model", dtype="float32", device="cpu", threads=options.threads) as llm:
            torch.set_num_threads(options.threads)
            ours = torch.tensor([each.embedding for each in llm.embed(texts, use_tqdm=False)])
            theirs = torch.tensor(reference.encode(texts, batch_size=32))
            times: dict[str, list[float]] = {"nanoserve": [], "sentence-transformers": []}
            for _ in range(options.calls):
                times["sentence-transformers"].append(seconds(lambda: reference.encode(texts, batch_size=32)))
                times["nanoserve"].append(seconds(lambda: llm.embed(texts, use_tqdm=False)))
    best = {name: min(each) for name, each in times.items()}
    print(
        json.dumps(
            {
                "texts_per_second": {name: round(options.texts / each, 2) for name, each in best.items()},
                "ratio": round(best["sentence-transformers"] / best["nanoserve"], 3),
                "least_cosine": float(torch.cosine_similarity(ours, theirs).min()),
            }
        )
    )


if __name__ == "__main__":
    main()
