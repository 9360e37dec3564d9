"""What a streamed token costs the HTTP process: microseconds of its CPU time, beside an engine that computes nothing.

    python -m benchmarks.http_tokens [--protocols completions chat ...] [--streams 64] [--rate 8000] [--output-len 256]
                                     [--rounds 40] [--seconds 0.5]

The whole server runs in this process, its engine in another one, where a step takes as long as makes `rate` tokens per
second of all streams together; a third process asks without end and reads. Tokens that pile up are sent together and
cost less, so what was measured while the pace was lost or made up for does not count.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import threading
import time
from typing import Final
from unittest import mock

from benchmarks.crowds import PATHS, crowd
from benchmarks.paced_engine import command as paced_command
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import (
    AccessSettings,
    BoundSettings,
    ListenSettings,
    ServeSettings,
    WatchSettings,
)
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.entrypoints.server import serve as program
from nanoserve.entrypoints.server.report import Started
from nanoserve.entrypoints.server.serving import Serving

INPUT_LEN: Final = 32
PACE_TOLERANCE: Final = 0.1


def measure(started: Started, given: argparse.Namespace) -> None:
    """Print a line per protocol, then leave."""
    measurements = started.service.measurements
    try:
        for protocol in given.protocols:
            url = started.addresses[0]
            with crowd("asking", url, given.streams, protocol, INPUT_LEN, given.output_len):
                windows = [measure_window(measurements, given.seconds) for _ in range(given.rounds)]
            costs = [cost for cost, rate in windows if abs(rate / given.rate - 1) < PACE_TOLERANCE]
            print(f"{protocol}: {describe(costs)}; {len(costs)} of {len(windows)} windows count", flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def describe(costs: list[float]) -> str:
    """The figures, or why there are none."""
    if not costs:
        return "the pace was never kept, ask for a lower --rate"
    return f"{statistics.median(costs):.1f} us per token, least {min(costs):.1f}, most {max(costs):.1f}"


def measure_window(measurements: Measurements, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU per token that clients have got, and tokens per second."""
    tokens = measurements.timings["inter_token"]
    before, cpu, began = sum(tokens.counts), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    count = sum(tokens.counts) - before
    return (time.process_time() - cpu) / max(count, 1) * 1e6, count / (time.perf_counter() - began)


def main() -> None:
    """Serve, and measure meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--protocols", nargs="+", choices=PATHS, default=["completions", "chat"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8_000.0)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5)
    given = parser.parse_args()
    log = LogSettings(log_level="error")
    configure_log(log)
    settings = Serving(
        engine=EngineSettings(max_num_seqs=given.streams),
        serve=ServeSettings(
            access=AccessSettings(),
            bounds=BoundSettings(),
            listen=ListenSettings(port=0, http_workers=1),
            watch=WatchSettings(),
        ),
        log=log,
    )
    engine = functools.partial(remote_engine, command=paced_command(given.streams / given.rate))

    def announce(started: Started) -> None:
        threading.Thread(target=measure, args=(started, given)).start()

    with mock.patch.object(program, "remote_engine", engine):
        program.serve(settings, announce)


if __name__ == "__main__":
    main()
