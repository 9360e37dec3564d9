"""What HTTP costs: concurrent streams through a server beside the same engine offline, and the time to a first token.

    python -m benchmarks.http_overhead [--model FOLDER] [--streams 64] [--input-len 64] [--output-len 128] [--repeats 3] [-- ENGINE OPTIONS]

Each repeat runs `nanoserve bench throughput` and `nanoserve bench serve` against a fresh `nanoserve serve`, one after the
other, with the same engine options. For the time to first token a single client asks one prompt after the other; what
the server's own books say of the engine's part (arrival to first token) is taken off, so that the rest is HTTP,
tokens' way between the processes included.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

NANOSERVE = (sys.executable, "-m", "nanoserve")
FIRST_TOKEN = re.compile(r"^nanoserve:time_to_first_token_seconds_(sum|count)\S* (\S+)$", re.MULTILINE)


@contextlib.contextmanager
def serving(model: Sequence[str], engine: Sequence[str], command: Sequence[str] = NANOSERVE) -> Iterator[str]:
    """A server's URL, for as long as the context lasts."""
    with tempfile.TemporaryFile("w+") as said:
        command = [*command, "serve", *model, "--port", "0", "--log-level", "error", *engine]
        server = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield _await_ready(server, said)
        finally:
            server.terminate()
            server.wait(60)


def _await_ready(server: subprocess.Popen[bytes], said: Any) -> str:
    while server.poll() is None:
        said.seek(0)
        text = said.read()
        found = re.search(r"listening on (http://\S+)", text)
        if found and "ready:" in text:
            return found[1]
        time.sleep(0.2)
    said.seek(0)
    raise SystemExit(f"the server did not start:\n{said.read()}")


def run(command: Sequence[str]) -> dict[str, Any]:
    """What a benchmark command wrote as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "report.json"
        subprocess.run([*NANOSERVE, *command, "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(file.read_text())
        return report


def first_tokens(client: http.client.HTTPConnection) -> tuple[float, float]:
    """Sum and number of the times to first token that the server has seen: from a request's arrival at the engine on."""
    client.request("GET", "/metrics")
    found = dict(FIRST_TOKEN.findall(client.getresponse().read().decode()))
    return float(found["sum"]), float(found["count"])


def measure_first_token(url: str, prompts: int) -> tuple[float, float]:
    """Mean milliseconds until a client has the first token, and of what the engine took of that."""
    address = urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    seen = []
    first_tokens(client)
    began_sum, began_count = first_tokens(client)
    for number in range(prompts):
        prompt = [number % 900 + 20, *range(30, 60)]
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0})
        began = time.perf_counter()
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = client.getresponse()
        answer.readline()
        seen.append(time.perf_counter() - began)
        answer.read()
    ended_sum, ended_count = first_tokens(client)
    return 1e3 * statistics.fmean(seen), 1e3 * (ended_sum - began_sum) / (ended_count - began_count)


def main() -> None:
    """Print a line per repeat and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("engine", nargs="*")
    given = parser.parse_args()
    lengths = ["--input-len", str(given.input_len), "--output-len", str(given.output_len)]
    named = [] if given.model is None else ["--model", given.model]
    ratios = []
    for _ in range(given.repeats):
        offline = run(
            [
                "bench",
                "throughput",
                *named,
                "--num-prompts",
                str(given.streams),
                *lengths,
                "--seeds",
                "1",
                *given.engine,
            ]
        )["summary"]["output_tok_s"]["median"]
        with serving([] if given.model is None else [given.model], given.engine) as url:
            load = ["--concurrency", str(given.streams), "--num-requests", str(given.streams), *lengths]
            report = run(["bench", "serve", "--url", url, *load])
            first, engine = measure_first_token(url, 100)
        served = report["levels"][0]["output_tok_s"]
        ratios.append(served / offline)
        print(
            f"offline {offline:,.0f} tok/s, {given.streams} streams {served:,.0f} tok/s, ratio {served / offline:.2f}; "
            f"first token {first:.2f} ms, of which the engine {engine:.2f} ms",
            flush=True,
        )
    print(f"ratio: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
