"""Generation on this machine's CPU beside transformers: the same weights, the same prompts, one run.

    python -m benchmarks.generation [--model embedded --model shape-1b] [--tokens N] [--repeats N]

`shape-1b` is Llama 3.2 1B's shape with random bfloat16 weights, written once to a temporary folder that both sides
load. Each side runs in a process of its own, with as many threads as there are physical cores, and the two take turns.
Speeds are generated tokens per second of the whole call, prefill included, greedy, end-of-sequence ignored: the median
of the repeats; the ratio is the median of the pairs, with the least and the most.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from nanoserve.adapters.embedded import model_folder

PROMPT_TOKENS = 128
BATCHES = (1, 8)
SHAPE_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "max_position_embeddings": 4096,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}

SIDES = ("benchmarks.transformers_side", "benchmarks.nanoserve_side")


def write_shape(folder: pathlib.Path, shape: Mapping[str, Any]) -> None:
    """Random weights of a shape, as a folder that transformers and nanoserve can load."""
    import torch  # noqa: PLC0415 - only this function needs it, and it takes seconds to import
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - as above

    torch.manual_seed(0)
    config = LlamaConfig(**shape, eos_token_id=2, bos_token_id=1)
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((model_folder() / name).read_bytes())


class Side:
    """One side in a process of its own, idle unless asked for a repeat."""

    def __init__(self, module: str, folder: str, batch: int, tokens: int) -> None:
        command = [sys.executable, "-m", module, folder, str(batch), str(PROMPT_TOKENS), str(tokens)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def measure(self) -> float:
        """Tokens per second of one repeat."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"one side ended early, with exit code {self._process.wait()}")
        return line


def compare(folder: str, batch: int, tokens: int, repeats: int) -> tuple[float, float, list[float]]:
    """Median speeds of both sides and the sorted ratios of the repeats, which take turns: the machine may drift."""
    theirs, ours = (Side(module, folder, batch, tokens) for module in SIDES)
    pairs = [(theirs.measure(), ours.measure()) for _ in range(repeats)]
    theirs.end()
    ours.end()
    ratios = sorted(our / their for their, our in pairs)
    return statistics.median(their for their, _ in pairs), statistics.median(our for _, our in pairs), ratios


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", choices=("embedded", "shape-1b"))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    columns = ("model", "batch", "transformers tok/s", "nanoserve tok/s", "ratio")
    table = Table(*columns, title=f"bfloat16, {PROMPT_TOKENS} tokens in, {options.tokens} out")
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.model or ("embedded", "shape-1b"):
            folder = str(model_folder())
            if model == "shape-1b":
                folder = scratch
                write_shape(pathlib.Path(scratch), SHAPE_1B)
            for batch in BATCHES:
                theirs, ours, ratios = compare(folder, batch, options.tokens, options.repeats)
                ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
                table.add_row(model, str(batch), f"{theirs:.1f}", f"{ours:.1f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
