"""Write a model folder with random weights, for benchmarks that need a tokenizer beside the weights, such as a server's.

    python -m benchmarks.random_model shape:llama-3.2-1b FOLDER [--int4]

With `--int4` the projections are 4-bit integers in groups of 128, as compressed-tensors packs them.
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
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from benchmarks.peers.shape_config import config_of
from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.bench.serving.client import WORDS
from nanoserve.entrypoints.compose.shapes import CONFIGS, PREFIX

AUTO: Any = AutoModelForCausalLM
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


GROUP = 128
SHARD = 4 << 30
"""Bytes of a file, as published models have."""


def write_model(shape: str, folder: pathlib.Path, *, int4: bool = False) -> None:
    """Save the shape in bfloat16, or with projections of 4-bit integers, sharded as published models are."""
    config: Any = config_of(CONFIGS[shape.removeprefix(PREFIX)])
    config.eos_token_id = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta" if int4 else device):
        model = AUTO.from_config(config, dtype=torch.bfloat16)
    if int4:
        _save_packed(model, folder, device)
    else:
        model.save_pretrained(folder)
    for name in COPIED:
        shutil.copy(model_folder() / name, folder / name)
    fill_vocabulary(folder / "tokenizer.json", config.vocab_size)


def _save_packed(model: Any, folder: pathlib.Path, device: str) -> None:
    """Random words of eight integers and small scales in the place of the projections' weights."""
    weights = {"type": "int", "num_bits": 4, "symmetric": True, "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    model.config.quantization_config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    model.config.save_pretrained(folder)
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if sum(each.nbytes for each in shards[-1].values()) > SHARD:
            shards.append({})
        shards[-1] |= _packed(name, weight.shape, device)
    files = {
        f"model-{index:05d}-of-{len(shards):05d}.safetensors": shard for index, shard in enumerate(shards, 1)
    }
    for file, shard in files.items():
        save_file(shard, folder / file, metadata={"format": "pt"})
    places = {name: file for file, shard in files.items() for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _packed(name: str, shape: torch.Size, device: str) -> dict[str, torch.Tensor]:
    if not name.endswith("_proj.weight"):
        ones = len(shape) == 1
        made = torch.ones(shape) if ones else torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
        return {name: made.to("cpu", torch.bfloat16)}
    rows, columns = shape
    stem = name.removesuffix("weight")
    words = torch.randint(-(2**31), 2**31, (rows, columns // 8), device=device).int().cpu()
    scales = torch.full((rows, columns // GROUP), 0.005, dtype=torch.bfloat16)
    return {
        f"{stem}weight_packed": words,
        f"{stem}weight_scale": scales,
        f"{stem}weight_shape": torch.tensor(shape),
    }


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
    parser.add_argument("--int4", action="store_true")
    arguments = parser.parse_args()
    write_model(arguments.shape, arguments.folder, int4=arguments.int4)
