"""What a batch costs the chat beside it: the same chat alone, and while the server works on a batch.

    python -m benchmarks.batch_beside_chat [MODEL] [--lines 10000] [--line-input 128] [--line-output 32] [--chats 8] [--requests 128]
                                           [--input-len 256] [--output-len 128] [--rounds 2] [--patience 600] [-- OPTIONS OF THE SERVER]

The chat is `nanoserve bench serve` with so many clients. Rounds alone and beside take turns where there are several: a round beside creates
a batch of all lines once its predecessor has ended or was cancelled. Each begins with a few requests that do not count. Every line must be answered once within `--patience` seconds after
the last round; with 0 the batch is cancelled then.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from benchmarks.http_overhead import run
from benchmarks.servers import serving, split_options
from nanoserve.entrypoints.bench.report import show, table

IDS = range(20, 1000)
LATENCIES = {"ttft": "first token", "itl": "between tokens"}


def make_lines(count: int, input_len: int, output_len: int) -> bytes:
    """Completions of random prompts, as a file."""
    draw = random.Random(0)
    bodies = [
        {
            "prompt": draw.choices(IDS, k=input_len),
            "max_tokens": output_len,
            "ignore_eos": True,
            "seed": number,
        }
        for number in range(count)
    ]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def chat(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """What the chat saw."""
    lengths = ("--input-len", given.input_len, "--output-len", given.output_len)
    warmup = ("--warmup-requests", 2 * given.chats)
    load = ("--concurrency", given.chats, "--num-prompts", given.requests, *warmup, *lengths)
    level: dict[str, Any] = run("serve", url, *load)["levels"][0]
    assert set(level["results"]) == {"ok"}, level["results"]
    return level


class Batch:
    """A batch on the server."""

    def __init__(self, client: httpx.Client, file: str) -> None:
        self._client = client
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        self._id = client.post("/v1/batches", json=body).raise_for_status().json()["id"]
        while self.state["status"] == "validating":
            time.sleep(0.1)

    @property
    def state(self) -> dict[str, Any]:
        """As the server shows it."""
        found: dict[str, Any] = self._client.get(f"/v1/batches/{self._id}").raise_for_status().json()
        return found

    @property
    def answered(self) -> int:
        """Lines that have an answer."""
        counts: dict[str, int] = self.state["request_counts"]
        return counts["completed"] + counts["failed"]

    def end(self, patience: float) -> str:
        """Wait until it has ended, or cancel it; says what became of its lines."""
        until = time.monotonic() + patience
        while (state := self.state)["status"] not in {"completed", "cancelled", "failed"}:
            if time.monotonic() > until and state["status"] == "in_progress":
                self._client.post(f"/v1/batches/{self._id}/cancel").raise_for_status()
            time.sleep(0.1)
        if state["output_file_id"] is None:
            return f"{state['status']} without an answer"
        said = self._client.get(f"/v1/files/{state['output_file_id']}/content").raise_for_status().text
        ids = collections.Counter(json.loads(line)["custom_id"] for line in said.splitlines())
        total = state["request_counts"]["total"]
        return f"{state['status']}, {len(ids)} of {total} lines answered, none more than {max(ids.values())} times"


def show_chats(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The medians of the rounds, of an even number the lower ones, and their ratio."""

    def middle(name: str, latency: str, quantile: str) -> float:
        values = sorted(each[latency][quantile] for each in found[name])
        return float(values[(len(values) - 1) // 2])

    rows = []
    for latency, label in LATENCIES.items():
        for quantile in ("p50", "p99"):
            alone, beside = (middle(name, latency, quantile) for name in ("alone", "beside"))
            rows.append([f"{label}, {quantile}", f"{alone:.2f}", f"{beside:.2f}", f"{beside / alone:.3f}"])
    show(table(["ms of the chat", "alone", "beside a batch", "ratio"], rows))


def main() -> None:
    """Measure, and print what the chat saw and what became of the batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    for name, default in (("lines", 10_000), ("line-input", 128), ("line-output", 32), ("chats", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("requests", 128), ("input-len", 256), ("output-len", 128), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--patience", type=float, default=600.0)
    own, server = split_options(sys.argv[1:])
    given = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--batch-dir", str(pathlib.Path(folder) / "kept"), *server]
        with serving(given.model, options) as url, httpx.Client(base_url=url, timeout=60.0) as client:
            lines = make_lines(given.lines, given.line_input, given.line_output)
            file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", lines)})
            found: dict[str, list[dict[str, Any]]] = {"alone": [], "beside": []}
            for number in range(given.rounds):
                found["alone"].append(chat(url, given))
                batch = Batch(client, file.raise_for_status().json()["id"])
                before, began = batch.answered, time.monotonic()
                found["beside"].append(chat(url, given))
                done, seconds = batch.answered - before, time.monotonic() - began
                ended = batch.end(given.patience if number == given.rounds - 1 else 0.0)
                show(f"{done} lines in {seconds:.1f} s beside the chat; then the batch was {ended}")
    show_chats(found)


if __name__ == "__main__":
    main()
