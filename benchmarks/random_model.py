"""Write a model folder with random weights, for benchmarks that need a tokenizer beside the weights, such as a server's.

    python -m benchmarks.random_model shape:llama-3.2-1b FOLDER

The tokenizer is the embedded model's. Ids beyond its vocabulary are the words of the benchmarks' prompts, so that each of them is
one token as it is to published models, and words that no prompt has.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.shape_config import config_of
from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.bench.serving.client import WORDS
from nanoserve.entrypoints.compose.shapes import shape_config

AUTO: Any = AutoModelForCausalLM
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_model(shape: str, folder: pathlib.Path) -> None:
    """Save the shape in bfloat16, sharded as published models are."""
    config: Any = config_of(shape_config(shape))
    config.eos_token_id = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AUTO.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for name in COPIED:
        shutil.copy(model_folder() / name, folder / name)
    fill_vocabulary(folder / "tokenizer.json", config.vocab_size)


def fill_vocabulary(file: pathlib.Path, size: int) -> None:
    """Give every id a text, as the ids of published models have."""
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(each["id"] for each in tokenizer["added_tokens"])}
    free = (token for token in range(size) if token not in taken)
    words = (word for word in dict.fromkeys(f"\u0120{each}" for each in WORDS) if word not in vocabulary)
    vocabulary.update(dict(zip(words, free, strict=False)))
    vocabulary.update({f"\u0120w{token}": token for token in free})
    tokenizer["model"]["ignore_merges"] = True
    file.write_text(json.dumps(tokenizer))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    write_model(arguments.shape, arguments.folder)
