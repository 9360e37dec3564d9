"""What a bomb costs its neighbours: four streams beside one client's constraints, and beside as many plain requests.

    python -m benchmarks.neighbours URL [--model NAME] [--pairs N] [--seconds N] [--rate N]

Against a running server. For each bomb it measures windows in interleaved pairs: in one a client sends the bomb at a fixed rate,
fresh each time, in the other a plain request of as many tokens at the same times. It prints the tokens per second of the four streams in both, their
ratio (the median over the pairs), whether every text stayed equal, and the bomb's statuses.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import httpx

PROMPTS = ("Once upon a time", "The old lighthouse", "Two friends met", "A small bird")
LENGTH = 64
SENDERS = 8
"""Take turns, so that an answer that takes long delays no other request."""
_ROW = "{:30} {:>11} {:>12} {:>6} {:>12}  {}"
_fresh = itertools.count()


def _schema(make: Callable[[int], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"structured_outputs": {"json": make(next(_fresh))}}


def _optional(count: int) -> Callable[[int], Any]:
    return lambda n: {
        "type": "object",
        "properties": {f"p{n}_{each}": {"type": "string"} for each in range(count)},
    }


BOMBS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "enum of 250 KB": _schema(
        lambda n: {"enum": [f"value {n} number {each} of {each * 7919}" for each in range(6000)]}
    ),
    "choice of 200,000 characters": lambda: {
        "structured_outputs": {"choice": [f"{next(_fresh)}" + "x" * 200_000]}
    },
    "choice of 24 texts of 8,000": lambda: {
        "structured_outputs": {"choice": [f"{next(_fresh)}" + "x" * 8000 for _ in range(24)]}
    },
    "const of 8,000 characters": _schema(lambda n: {"const": f"{n}" + "x" * 8000}),
    "1,000 optional properties": _schema(_optional(1000)),
    "4,000 optional properties": _schema(_optional(4000)),
    "endless $ref": _schema(
        lambda n: {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}, "title": f"{n}"}
    ),
    "(.|\\n)*a.{40}": lambda: {
        "structured_outputs": {"grammar": f"start: T\nT: /(.|\\n)*a.{{40}}{next(_fresh)}/"}
    },
    "100 KB of schema": _schema(
        lambda n: {
            "$comment": f"{n}",
            "type": "object",
            "properties": {f"p{each}": _optional(20)(n) | {"description": "d" * 1000} for each in range(50)},
        }
    ),
}


@attrs.define
class Window:
    """What the streams wrote in one stretch of time."""

    tokens: int = 0
    texts: set[tuple[str, str]] = attrs.field(factory=set)
    statuses: collections.Counter[int] = attrs.field(factory=collections.Counter)


def _stream(client: httpx.Client, model: str, prompt: str, window: Window, until: float) -> None:
    while time.perf_counter() < until:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": LENGTH,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        text = ""
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    window.tokens += time.perf_counter() < until
        window.texts.add((prompt, text))


def _turns(times: Iterator[float], until: float) -> Iterator[None]:
    """Waits for each time; those that are over when the server has answered the last one, at the end of the window, are left out."""
    for due in times:
        time.sleep(max(due - time.perf_counter(), 0))
        if time.perf_counter() >= until:
            return
        yield


def _attack(
    client: httpx.Client,
    model: str,
    extra: Callable[[], dict[str, Any]],
    window: Window,
    turns: Iterator[None],
) -> None:
    for _ in turns:
        body = {"model": model, "prompt": "x", "max_tokens": 16, "temperature": 0, **extra()}
        window.statuses[client.post("/v1/completions", json=body).status_code] += 1


def measure(url: str, model: str, extra: Callable[[], dict[str, Any]], seconds: float, rate: float) -> Window:
    """Four streams beside requests that are sent so many a second, however fast they are answered."""
    window, start = Window(), time.perf_counter()
    until, count = start + seconds, round(seconds * rate)
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        threads = [
            threading.Thread(target=_stream, args=(client, model, prompt, window, until))
            for prompt in PROMPTS
        ]
        for first in range(SENDERS):
            times = (start + number / rate for number in range(first, count, SENDERS))
            turns = _turns(times, until)
            threads.append(threading.Thread(target=_attack, args=(client, model, extra, window, turns)))
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return window


def main() -> None:
    """Print a row for each bomb, as soon as it is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--model", default="built-in")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rate", type=float, default=4, help="requests a second, bombs or plain ones")
    asked = parser.parse_args()
    print(_ROW.format("bomb", "plain tok/s", "beside tok/s", "ratio", "texts equal", "statuses"), flush=True)
    known: set[tuple[str, str]] = measure(asked.url, asked.model, dict, asked.seconds, asked.rate).texts
    for name, bomb in BOMBS.items():
        pairs = [
            [measure(asked.url, asked.model, each, asked.seconds, asked.rate) for each in (dict, bomb)]
            for _ in range(asked.pairs)
        ]
        rates = [[each.tokens / asked.seconds for each in pair] for pair in pairs]
        plain, beside = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(after / before for before, after in rates)
        is_equal = all(each.texts <= known for pair in pairs for each in pair)
        statuses = sum((pair[1].statuses for pair in pairs), collections.Counter[int]())
        row = (name, f"{plain:.0f}", f"{beside:.0f}", f"{ratio:.2f}", str(is_equal), str(dict(statuses)))
        print(_ROW.format(*row), flush=True)


if __name__ == "__main__":
    main()
