"""Write the model card: what the model is, how it was made, what was measured, and what it says, verbatim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.embedded_model.evaluate import Report
from tools.embedded_model.recipe import STAGES, model_config
from tools.embedded_model.tokenizer import CONTEXT

_INTRODUCTION = """\
---
license: mit
language: en
library_name: transformers
pipeline_tag: text-generation
---

# The model in the box

A small Llama that ships with nanoserve, so that the first command works with no download and no GPU, and so that
tests read text and not noise. It tells short stories, chats over several turns, answers easy questions, writes
small JSON records, calls tools that it is offered and thinks briefly where it is asked to. It knows nothing else: it was trained only on text that this project generates itself from its
own grammar (`tools/embedded_model/corpus/`), and its facts are a few word lists.
"""


def _shape(weights: Path) -> str:
    config = model_config()
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
        "temperature 0.7, top-p 0.9.\n\n"
        "Tools are offered as short signatures in the system turn, without the descriptions of parameters; calls are written as "
        "Hermes models write them, results come back in `<tool_response>`. With `enable_thinking` the template opens "
        "`<think>` and the answer follows `</think>`; without it the model answers at once. All these marks are plain text.\n"
    )


def _making(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = {
        "seed": [run["stage"]["seed"] for run in runs],
        "distinct training tokens": [f"{run['distinct_tokens']:,}" for run in runs],
        "tokens trained on": [f"{run['tokens']:,}" for run in runs],
        "steps": [
            f"{run['stage']['steps']:,} of {run['stage']['rows_per_step']} x {CONTEXT}" for run in runs
        ],
        "learning rate": [_schedule(run["stage"]) for run in runs],
        "last training loss, nats per token": [f"{run['last_loss']:.4f}" for run in runs],
        "making the data": [f"{run['data_seconds']:.0f} s" for run in runs],
        "training": [f"{run['train_seconds']:.0f} s on one {run['device']}" for run in runs],
    }
    head = f"| what | {' | '.join(list(STAGES)[: len(runs)])} |\n|{' --- |' * (len(runs) + 1)}\n"
    table = "".join(f"| {name} | {' | '.join(map(str, values))} |\n" for name, values in rows.items())
    return (
        "## Recipe\n\n"
        "Three stages, each begins with the weights of the one before (`training.json` has what each did):\n\n"
        "```\npython -m tools.embedded_model.tokenizer\npython -m tools.embedded_model.train texts --out FOLDER\n"
        "python -m tools.embedded_model.train tools --start FOLDER --out FOLDER\n"
        "python -m tools.embedded_model.train names --start FOLDER --out FOLDER\n```\n\n"
        f"{head}{table}\n"
        "Of the committed weights, the stage `tools` ran before the corpus had made-up tools, which the third stage is for, and before "
        "the opening mark of a thought was left out of what is learned.\n\n"
        "AdamW with betas 0.9 and 0.95, weight decay 0.1, clipped at 1.0, bfloat16 autocast. The first stage is stories, "
        "conversations, JSON records and facts; more than half of the others is tools and thinking. `corpus/documents.py` has the mixtures. One in "
        "twenty combinations of hero, friend, thing and place is held out, and eight tools are: training never shows them. One in ten sums "
        "is never asked in training, though a thought may pass through it.\n"
    )


def _schedule(stage: Mapping[str, Any]) -> str:
    return f"{stage['warmup_steps']} steps up to {stage['peak_learning_rate']}, cosine to {stage['final_learning_rate']}"


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
    parts.append("A tool and a thought, greedy, with every mark that the model reads and writes:\n")
    parts += [f"```text\n{text}\n```\n" for text in report.transcripts]
    return "\n".join(parts)


_LIMITS = """\
## Limits

It copies names and things well and reasons hardly at all: its thoughts are short, and may be wrong where its answer is right. Facts outside its lists are wrong or declined; long sums fail;
tools are called well where the question says the values of their parameters, and seldom with nested objects or more than four tools;
stories follow the eighteen plots of their grammar. A request in words unlike the
corpus gets the nearest thing it knows: JSON keys beyond its six kinds of record are ignored, and so is a plot of your own.
The held-out mix has fewer long conversations than the training mix, so the two losses are not of the same texts. English only. Use it to see an engine work, never for answers.
"""


def write_card(folder: Path, runs: Sequence[Mapping[str, Any]], report: Report) -> None:
    """Write README.md beside the weights in `folder`; `runs` are the stages that made them."""
    weights = folder / "model.safetensors"
    parts = (_INTRODUCTION, _shape(weights), _making(runs), _measured(report), _samples(report), _LIMITS)
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")
