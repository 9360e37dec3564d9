"""Measure a saved model: held-out loss, how often chats stop and JSON parses, and verbatim samples.

Run from the repository root: `python -m tools.embedded_model.evaluate --model FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import torch
from torch.nn import functional

from tools.embedded_model.corpus.cast import invented_name
from tools.embedded_model.corpus.documents import document
from tools.embedded_model.corpus.quizzes import arithmetic
from tools.embedded_model.corpus.records import draw_record, request
from tools.embedded_model.corpus.requests import story_request
from tools.embedded_model.rows import pack
from tools.embedded_model.sampling import Sampler
from tools.embedded_model.tokenizer import CONTEXT, MODEL_FOLDER
from tools.embedded_model.tool_rates import call_rates, outcome_rates, thinking_rates, transcripts

_SEED: Final = 7
_LONGEST_TALK: Final = 5000
_WORD: Final = re.compile(r"[A-Za-z]+")
_STORY_PROMPTS: Final = (
    "Once upon a time",
    "Once upon a time",
    "One morning, the little robot",
    "The castle",
)
_CHATS: Final[tuple[tuple[str, ...], ...]] = (
    ("Tell me a story about a submarine and a waffle.",),
    ("Tell me a story about a fox and a lamp.", "Who was the hero of the story?"),
    ("Hello!", "My name is Ada.", "What is my name?"),
    ("What is 12 + 30?", "What is the colour of the sky?"),
    ("Make a JSON record for a person named Rosa who is 34 years old and lives in Lisbon.",),
    ("Show me the emoji for a fox.", "How do you say hello in Japanese?"),
    ("Explain quantum physics.",),
)


@attrs.frozen
class Report:
    """All measurements; rates are between 0 and 1, losses in nats per token."""

    held_out_loss: float
    held_out_tokens: int
    rates: dict[str, float]
    story_words: float
    samples_per_rate: int
    stories: tuple[tuple[str, str], ...]
    chats: tuple[tuple[tuple[str, str], ...], ...]
    transcripts: tuple[str, ...]


def held_out_loss(sampler: Sampler, rows_per_shard: int, workers: int) -> tuple[float, int]:
    """Mean next-token loss of the bfloat16 weights on held-out rows, and the number of tokens."""
    rows = pack(
        16,
        rows=rows_per_shard,
        length=CONTEXT + 1,
        split="held_out",
        tokenizer_file=MODEL_FOLDER / "tokenizer.json",
        workers=workers,
    )
    losses: list[float] = []
    for part in np.array_split(rows, max(1, len(rows) // 16)):
        ids = torch.from_numpy(part.astype(np.int64)).to(sampler.device)
        with torch.inference_mode():
            logits = sampler.model(input_ids=ids[:, :-1]).logits.float()
        losses += [float(functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))] * len(part)
    return sum(losses) / len(losses), rows.size


def _mean(values: list[bool]) -> float:
    return sum(values) / len(values)


def _user(text: str) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": text}]


def json_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often a requested record parses, and how often it is exactly the one that was described."""
    rng = random.Random(_SEED)
    records = [draw_record(rng) for _ in range(samples)]
    answers = sampler.chat([_user(request(record, rng)[0]) for record in records], _SEED)
    asks = [f"Make a JSON record for a {record.kind} {record.details}." for record in records]
    described = sampler.chat([_user(ask) for ask in asks], _SEED)
    exact = [
        _parsed(answer.text) == dict(record.fields) for answer, record in zip(described, records, strict=True)
    ]
    valid = [_parsed(answer.text) is not None for answer in answers]
    return {"JSON answers that parse": _mean(valid), "described JSON records copied exactly": _mean(exact)}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def chat_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often an answer ends by itself, after a first question and deep in a conversation."""
    made = (document(index, "held_out").turns for index in range(samples * 8))
    talks = [turns for turns in made if turns and sum(len(content) for _, content in turns) < _LONGEST_TALK][
        :samples
    ]
    whole = [[{"role": role, "content": content} for role, content in turns[:-1]] for turns in talks]
    firsts = [turns[: 2 if turns[0]["role"] == "system" else 1] for turns in whole]
    rates = {}
    for name, conversations in (("first answers that stop", firsts), ("later answers that stop", whole)):
        rates[name] = _mean([answer.stopped for answer in sampler.chat(conversations, _SEED)])
    return rates


def _words_of(index: int) -> set[str]:
    return set(_WORD.findall(document(index).rendered()))


def story_rates(sampler: Sampler, samples: int, workers: int) -> tuple[dict[str, float], float]:
    """Raw and asked-for stories: do they stop, use only words of the corpus, and grant the wishes? And mean words."""
    with ProcessPoolExecutor(workers) as pool:
        known = set[str]().union(*pool.map(_words_of, range(100 * samples), chunksize=200))
    raw = sampler.complete(["Once upon a time"] * samples, _SEED)
    words = [_WORD.findall(answer.text) for answer in raw]
    rng = random.Random(_SEED)
    asked = [story_request(rng) for _ in range(samples)]
    told = sampler.chat([_user(question) for question, _ in asked], _SEED)
    granted = [
        all(wish in answer.text for wish in (wishes.kind, wishes.name, wishes.thing, wishes.place))
        for (_, wishes), answer in zip(asked, told, strict=True)
    ]
    rates = {
        "raw stories that stop": _mean([answer.stopped for answer in raw]),
        "story words known to the corpus": _mean([word in known for story in words for word in story]),
        "asked-for stories that stop": _mean([answer.stopped for answer in told]),
        "asked-for stories with every wished hero, name, thing and place": _mean(granted),
    }
    return rates, sum(map(len, words)) / samples


def sum_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """Greedy answers to sums that training never showed."""
    rng = random.Random(_SEED)
    asked = [arithmetic(rng, held_out=True) for _ in range(samples)]
    answers = sampler.chat(
        [_user(question) for question, _ in asked], _SEED, do_sample=False, temperature=None, top_p=None
    )
    right = [answer.text == truth for answer, (_, truth) in zip(answers, asked, strict=True)]
    return {"held-out sums right (greedy)": _mean(right)}


def name_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often a made-up name, told two turns ago, is remembered."""
    rng = random.Random(_SEED)
    names = [invented_name(rng) for _ in range(samples)]
    told = [
        [*_user(f"My name is {name}."), {"role": "assistant", "content": f"Hello, {name}!"}] for name in names
    ]
    answers = sampler.chat([[*turns, *_user("What is my name?")] for turns in told], _SEED)
    right = [answer.text == f"Your name is {name}." for name, answer in zip(names, answers, strict=True)]
    return {"made-up names remembered": _mean(right)}


def sample_chat(sampler: Sampler, questions: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Hold one conversation and return it as (question, answer) pairs."""
    messages: list[Mapping[str, Any]] = []
    for question in questions:
        messages += _user(question)
        answer = sampler.chat([messages], _SEED)[0].text
        messages.append({"role": "assistant", "content": answer})
    contents = [message["content"] for message in messages]
    return tuple(zip(contents[::2], contents[1::2], strict=True))


def evaluate(folder: Path, device: torch.device, samples: int, workers: int) -> Report:
    """Measure everything."""
    sampler = Sampler.load(folder, device)
    rates: dict[str, float] = {}

    def measured(found: dict[str, float]) -> None:
        for name, rate in found.items():
            print(f"{name}: {rate:.3f}", flush=True)
        rates.update(found)

    for measure in (call_rates, outcome_rates, thinking_rates, sum_rates, name_rates, json_rates):
        measured(measure(sampler, samples))
    loss, tokens = held_out_loss(sampler, max(1, samples // 10), workers)
    print(f"held-out loss {loss:.4f} nats over {tokens} tokens", flush=True)
    stories, words = story_rates(sampler, samples, workers)
    measured(stories)
    measured(chat_rates(sampler, samples))
    texts = tuple(
        (prompt, sampler.complete([prompt], seed)[0].text) for seed, prompt in enumerate(_STORY_PROMPTS, 1)
    )
    chats = tuple(sample_chat(sampler, chat) for chat in _CHATS)
    return Report(loss, tokens, rates, words, samples, texts, chats, transcripts(sampler))


def main() -> None:
    """Print the report of a saved model as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    report = evaluate(given.model, torch.device(given.device), given.samples, len(os.sched_getaffinity(0)))
    print(json.dumps(attrs.asdict(report), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
