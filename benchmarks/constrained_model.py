"""What answers of a model keep of their speed when they follow grammars: as `benchmarks.constrained`, with a model in place of dice.

    python -m benchmarks.constrained_model [shape:llama-3.2-1b] [--rows 64 256] [--tokens 128] [--calls 3]

The model's weights are random, so that any token that a mask allows has about the same chance, which is the worst case. Its tokens are made
up, as many as the shape has. All requests come at once, with the same schemas as there; each kind has a first call that compiles them and
does not count. Calls with and without grammars take turns; shares are medians of `--calls`, and the least.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.constrained import PROMPT, make_schema
from benchmarks.grammars import make_tokenizer
from benchmarks.random_model import write_model
from nanoserve.entrypoints.offline import LLM, SamplingParams


def write_folder(shape: str, folder: pathlib.Path) -> int:
    """Random weights, with a tokenizer of as many made-up tokens as these are for; their number."""
    write_model(shape, folder)
    config = json.loads((folder / "config.json").read_text())
    vocab: int = config["vocab_size"]
    (folder / "tokenizer.json").write_text(make_tokenizer(vocab).to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": vocab - 1}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return vocab


class Calls:
    """Calls of `rows` requests at once; no prompt comes twice."""

    def __init__(self, llm: LLM, vocab: int, rows: int, tokens: int) -> None:
        self._llm, self._vocab, self._rows, self._tokens = llm, vocab, rows, tokens
        self._draw = random.Random(rows)

    def rate(self, schemas: Sequence[str] = ()) -> float:
        """Tokens per second of a whole call, the first rows of which follow these schemas: of the free ones alone where there are both."""
        draw, rows, free = self._draw, self._rows, self._rows - len(schemas)
        prompts = [[draw.randrange(self._vocab - 1) for _ in range(PROMPT)] for _ in range(rows)]
        params = [
            SamplingParams(max_tokens=self._tokens, temperature=1.0, seed=row, detokenize=False, ignore_eos=row >= len(schemas))
            for row in range(rows)
        ]  # fmt: skip
        forms: list[Any] = [*({"json": json.loads(each)} for each in schemas), *[None] * free]
        began = time.perf_counter()
        answers = self._llm.generate(prompts, params, structured_outputs=forms, use_tqdm=False)
        counted = answers[len(schemas) :] or answers
        return sum(len(each.outputs[0].token_ids) for each in counted) / (time.perf_counter() - began)


def measure(calls: Calls, rows: int, count: int, table: Table) -> None:
    """A line for each kind of call."""
    each = [make_schema(number) for number in range(rows)]
    kinds = {"one schema": each[:1] * rows, "a schema each": each, f"1 of {rows}": each[:1]}
    calls.rate()
    for name, schemas in kinds.items():
        calls.rate(schemas)
        pairs = [(calls.rate(), calls.rate(schemas)) for _ in range(count)]
        counted = rows - len(schemas) or rows
        shares = [bound / free * rows / counted for free, bound in pairs]
        free, bound = (statistics.median(of) for of in zip(*pairs, strict=True))
        figures = f"{free:,.0f}", f"{bound:,.0f}", f"{statistics.median(shares):.1%}", f"{min(shares):.1%}"
        table.add_row(str(rows), name, *figures)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shape", nargs="?", default="shape:llama-3.2-1b")
    parser.add_argument("--rows", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--calls", type=int, default=3, help="of each kind")
    asked = parser.parse_args()
    table = Table(
        "rows",
        "answers",
        "free tok/s",
        "tok/s",
        "share",
        "least",
        title=f"{asked.shape}, {asked.tokens} tokens each",
    )
    with tempfile.TemporaryDirectory() as name:
        vocab = write_folder(asked.shape, folder := pathlib.Path(name))
        for rows in asked.rows:
            with LLM(folder, max_num_seqs=rows, max_model_len=2 * (PROMPT + asked.tokens)) as llm:
                gc.collect()
                gc.freeze()
                measure(Calls(llm, vocab, rows, asked.tokens), rows, asked.calls, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
