"""What one process answers, with adapters and without, and what two ranks do: the same tokens of the built-in model in float32.

    python -m tools.rank_answers                   # two GPUs
    python -m tools.rank_answers --device cpu

Exits with an error if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import tempfile
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

ADAPTERS: Final = {"a": 8, "b": 16}
"""Ranks of the adapters by their names."""
LONGEST: Final = 60
TOKENS: Final = 24


def main() -> None:
    """Compare the answers of both, request by request."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: make_adapter(pathlib.Path(folder, name), rank) for name, rank in ADAPTERS.items()}
        found = [answers(arguments, size, folders) for size in (1, 2)]
    alone, shared = found
    differing = [number for number in alone if alone[number] != shared[number]]
    for number in differing:
        print(f"request {number}: {alone[number]}\n    and {shared[number]}")
    if differing:
        raise SystemExit(f"{len(differing)} of {len(alone)} answers differ")
    changed = sum(
        alone[f"{name}{number}"] != alone[f"-{number}"]
        for name in "ab"
        for number in range(arguments.prompts)
    )
    print(f"{len(alone)} answers are equal; adapters have changed {changed} of {2 * arguments.prompts}")


def make_adapter(folder: pathlib.Path, rank: int) -> str:
    """Random factors of every projection of the built-in model, in PEFT's form."""
    folder.mkdir()
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": "all-linear",
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    generator, tensors = torch.Generator().manual_seed(rank), {}
    with safe_open(model_folder() / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - no dictionary
            if name.endswith("_proj.weight"):
                n, k = weights.get_slice(name).get_shape()
                for half, size in (("A", (rank, k)), ("B", (n, rank))):
                    module = f"base_model.model.{name.removesuffix('.weight')}.lora_{half}.weight"
                    tensors[module] = torch.randn(size, generator=generator) * 0.7 * size[1] ** -0.5
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def answers(arguments: argparse.Namespace, ranks: int, folders: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of each request, from an engine of so many ranks, where all come at once."""
    settings = EngineSettings(
        device=arguments.device,
        dtype="float32",
        tensor_parallel_size=ranks,
        max_model_len=128,
        max_num_seqs=arguments.rows,
        paranoid=True,
        lora=",".join(f"{name}={folder}" for name, folder in folders.items()),
        max_lora_rank=max(ADAPTERS.values()),
    )
    parts = assemble_bench(settings)
    dice, found = random.Random(0), dict[str, list[int]]()
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    for number in range(arguments.prompts):
        prompt = tuple(dice.randrange(10, parts.facts.vocab_size) for _ in range(dice.randint(1, LONGEST)))
        for name in ("a", "b", ""):
            request = f"{name or '-'}{number}"
            parts.engine.add(Request(request_id=request, prompt_token_ids=prompt, sampling=greedy, lora=name))
            found[request] = []
    while parts.engine.has_work:
        for event in parts.engine.turn():
            if isinstance(event, TokensGenerated):
                assert event.error is None, event.error
                found[event.request_id].extend(event.token_ids)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rows", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main()
