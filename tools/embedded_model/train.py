"""Train the embedded model by one stage and write it, evaluated and with its card, to a folder.

Run from the repository root, first `python -m tools.embedded_model.train texts --out FOLDER`, then
`python -m tools.embedded_model.train tools --start FOLDER --out FOLDER`. On one data-center GPU both take
minutes; `--steps 5 --rows 1 --batch 2 --samples 2 --device cpu` walks the whole path on a laptop.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from tools.embedded_model.card import write_card
from tools.embedded_model.evaluate import evaluate
from tools.embedded_model.recipe import STAGES, Recipe, generation_config, model_config
from tools.embedded_model.rows import NOT_LEARNED, Rows, pack, targets_of
from tools.embedded_model.tokenizer import CONTEXT, MODEL_FOLDER

_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_RUNS_FILE: Final = "training.json"


@attrs.frozen
class Run:
    """The report of a finished stage: its schedule, tokens seen, seconds of data making and training, the device's name."""

    stage: Recipe
    tokens: int
    distinct_tokens: int
    data_seconds: float
    train_seconds: float
    last_loss: float
    device: str


def optimizer_for(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) with weight decay on matrices only."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    gains = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_learning_rate, betas=(0.9, 0.95), fused=True)


def batch_loss(model: LlamaForCausalLM, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross-entropy in nats; `rows` and `targets` int64 [batch, length]."""
    hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_LEARNED)


def thinking_prompt() -> list[int]:
    """The tokens with which the chat template has the model think."""
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    return [int(token) for token in tokenizer.encode("<|assistant|><think>\n", add_special_tokens=False).ids]


def train(model: LlamaForCausalLM, rows: Rows, recipe: Recipe, device: torch.device) -> float:
    """Run the schedule over shuffled rows and return the last printed mean loss."""
    order = np.random.default_rng(recipe.seed)
    optimizer = optimizer_for(model, recipe)
    loss_of = torch.compile(batch_loss) if device.type == "cuda" else batch_loss
    given = thinking_prompt()
    queue: list[int] = []
    total, since, printed = torch.zeros((), device=device), 0, 0.0
    started = time.monotonic()
    for step in range(recipe.steps):
        if len(queue) < recipe.rows_per_step:
            queue = order.permutation(len(rows)).tolist()
        chosen, queue = queue[: recipe.rows_per_step], queue[recipe.rows_per_step :]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        batch = torch.from_numpy(rows[chosen, :-1].astype(np.int64)).to(device)
        targets = torch.from_numpy(targets_of(rows[chosen], given)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(model, batch, targets)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total, since = total + loss.detach(), since + 1
        if step % 100 == 99 or step == recipe.steps - 1:
            printed = float(total) / since
            total, since = torch.zeros((), device=device), 0
            print(f"step {step + 1} loss {printed:.4f} after {time.monotonic() - started:.0f} s", flush=True)
    return printed


def run(recipe: Recipe, start: Path | None, out: Path, device: torch.device, workers: int) -> Run:
    """Make the data, train from `start` or from nothing, and save the model in bfloat16 with its configs and tokenizer."""
    started = time.monotonic()
    rows = pack(
        recipe.shards,
        rows=recipe.rows_per_shard,
        length=CONTEXT + 1,
        split="train",
        tokenizer_file=MODEL_FOLDER / "tokenizer.json",
        workers=workers,
        course=recipe.course,
    )
    made = time.monotonic()
    print(f"{rows.size} tokens in {made - started:.0f} s", flush=True)
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    model = (
        LlamaForCausalLM(model_config())
        if start is None
        else LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    )
    torch.nn.Module.to(model, device)
    model.train()
    last_loss = train(model, rows, recipe, device)
    seconds = time.monotonic() - made
    save(model, out)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    tokens = recipe.steps * recipe.rows_per_step * CONTEXT
    return Run(recipe, tokens, rows.size, made - started, seconds, last_loss, name)


def save(model: LlamaForCausalLM, out: Path) -> None:
    """Write weights in bfloat16, both configs, and the tokenizer's files."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = generation_config()
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(out)
    for name in _TOKENIZER_FILES:
        if (MODEL_FOLDER / name).resolve() != (out / name).resolve():
            shutil.copyfile(MODEL_FOLDER / name, out / name)


def record_run(finished: Run, start: Path | None, out: Path) -> list[dict[str, Any]]:
    """Write the stages that made the weights, those of `start` and this one, to training.json; returns them."""
    earlier = [] if start is None else json.loads((start / _RUNS_FILE).read_text(encoding="utf-8"))
    runs = [*earlier, attrs.asdict(finished)]
    (out / _RUNS_FILE).write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    return runs


def main() -> None:
    """Read the command line and run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=tuple(STAGES))
    parser.add_argument("--start", type=Path, help="the folder with the weights of the stage before")
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rows", type=int, help="rows per shard")
    parser.add_argument("--batch", type=int, help="rows per step")
    parser.add_argument("--samples", type=int, default=200, help="samples per measured rate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    changes = {"steps": given.steps, "rows_per_shard": given.rows, "rows_per_step": given.batch}
    recipe = attrs.evolve(STAGES[given.stage], **{name: value for name, value in changes.items() if value})
    workers = len(os.sched_getaffinity(0))
    finished = run(recipe, given.start, given.out, torch.device(given.device), workers)
    runs = record_run(finished, given.start, given.out)
    report = evaluate(given.out, torch.device(given.device), given.samples, workers)
    write_card(given.out, runs, report)


if __name__ == "__main__":
    main()
