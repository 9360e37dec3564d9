"""Write the model card: what the model is, how it was made, what was measured, and what it says, verbatim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.embedded_model.evaluate import Report
from tools.embedded_model.recipe import Recipe, model_config

_INTRODUCTION = """\
---
license: mit
language: en
library_name: transformers
pipeline_tag: text-generation
---

# The model in the box

A small Llama that ships with nanoserve, so that the first command works with no download and no GPU, and so that
tests read text and not noise. It tells short stories, chats over several turns, answers easy questions and writes
small JSON records. It knows nothing else: it was trained only on text that this project generates itself from its
own grammar (`tools/embedded_model/corpus/`), and its facts are a few word lists.
"""


def _shape(recipe: Recipe, weights: Path) -> str:
    config = model_config(recipe)
    size = weights.stat().st_size
    return (
        "## Shape\n\n"
        f"`LlamaForCausalLM`, {(size // 2) / 1e6:.2f} million parameters in bfloat16 ({size / 1e6:.1f} MB): "
        f"{config.num_hidden_layers} layers, width {config.hidden_size}, SwiGLU of {config.intermediate_size}, "
        f"{config.num_attention_heads} query heads on {config.num_key_value_heads} key-value heads of {config.head_dim}, "
        f"tied embeddings, context {config.max_position_embeddings}. Own byte-level BPE tokenizer of "
        f"{config.vocab_size} tokens: any Unicode text goes in and comes back unchanged.\n\n"
        "Plain text gets one `<|bos|>` from the tokenizer. A chat is rendered as "
        "`<|bos|><|system|>...<|end|><|user|>...<|end|><|assistant|>...<|end|>`; the template writes the `<|bos|>`, so "
        "encode a rendered chat with `add_special_tokens=False`. `<|end|>` is the end token. Defaults for sampling: "
        "temperature 0.7, top-p 0.9.\n"
    )


def _making(recipe: Recipe, run: Mapping[str, object]) -> str:
    return (
        "## Recipe\n\n"
        "```\npython -m tools.embedded_model.tokenizer\npython -m tools.embedded_model.train --out FOLDER\n```\n\n"
        "| what | value |\n| --- | --- |\n"
        f"| distinct training tokens, generated from seed {recipe.seed} | {run['distinct_tokens']:,} |\n"
        f"| tokens trained on | {run['tokens']:,} in {recipe.steps:,} steps of {recipe.rows_per_step} x {recipe.context} |\n"
        f"| optimizer | AdamW, betas 0.9 and 0.95, weight decay {recipe.weight_decay}, clipped at 1.0, bfloat16 autocast |\n"
        f"| learning rate | {recipe.warmup_steps} steps up to {recipe.peak_learning_rate}, cosine to {recipe.final_learning_rate} |\n"
        f"| last training loss | {run['last_loss']:.4f} nats per token |\n"
        f"| making the data | {run['data_seconds']:.0f} s |\n"
        f"| training | {run['train_seconds']:.0f} s on one {run['device']} |\n\n"
        "The mixture is 45 % stories, 45 % conversations, 7 % JSON records and 3 % facts. One in twenty combinations of "
        "hero, friend, thing and place, and one in ten sums, is held out: training never shows it.\n"
    )


def _measured(report: Report) -> str:
    rows = "".join(f"| {name} | {rate:.1%} |\n" for name, rate in report.rates.items())
    return (
        "## Measured\n\n"
        f"Held-out loss of these bfloat16 weights: {report.held_out_loss:.4f} nats per token over "
        f"{report.held_out_tokens:,} tokens. Rates over {report.samples_per_rate} samples each, at temperature 0.7 and "
        f"top-p 0.9 unless marked:\n\n| what | rate |\n| --- | --- |\n{rows}\n"
        f'A story from "Once upon a time" has {report.story_words:.0f} words on average.\n'
    )


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _samples(report: Report) -> str:
    parts = ["## Samples\n\nVerbatim, at temperature 0.7 and top-p 0.9, not chosen.\n"]
    for seed, (prompt, text) in enumerate(report.stories, 1):
        parts.append(f"Seed {seed}, the prompt in bold:\n\n{_quoted(f'**{prompt}**{text}')}\n")
    for chat in report.chats:
        turns = "\n>\n".join(
            f"> **user:** {asked}\n>\n{_quoted(f'**assistant:** {answer}')}" for asked, answer in chat
        )
        parts.append(f"A chat with seed 7:\n\n{turns}\n")
    return "\n".join(parts)


_LIMITS = """\
## Limits

It copies names and things well and reasons not at all. Facts outside its lists are wrong or declined; long sums fail;
stories follow the eighteen plots of their grammar. A request in words unlike the
corpus gets the nearest thing it knows: JSON keys beyond its six kinds of record are ignored, and so is a plot of your own.
The held-out mix has fewer long conversations than the training mix, so the two losses are not of the same texts. English only. Use it to see an engine work, never for answers.
"""


def write_card(folder: Path, recipe: Recipe, run: Mapping[str, object], report: Report) -> None:
    """Write README.md beside the weights in `folder`."""
    weights = folder / "model.safetensors"
    parts = (
        _INTRODUCTION,
        _shape(recipe, weights),
        _making(recipe, run),
        _measured(report),
        _samples(report),
        _LIMITS,
    )
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")
