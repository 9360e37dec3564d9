"""What a peer is asked and what it answers, and the frame of every peer's program around its own way to generate."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

Generate = Callable[["PeerLoad"], int]
"""Runs a load to its end and returns how many tokens it generated."""


@attrs.frozen
class PeerLoad:
    """Prompts as token ids, and how many tokens to generate for each."""

    prompts: Sequence[Sequence[int]]
    output_lengths: Sequence[int]


@attrs.frozen(kw_only=True)
class PeerJob:
    """One model and the loads to run on it, in order.

    Attributes:
        folder: where the model's files are; None for random weights of the shape.
        shape: the config.json of the shape, if it is one.
        sampling: what shapes the draw, by the names of `SamplingParams`; a temperature of 0 is greedy.
        threads: processor threads on a CPU; None leaves it to the library and its environment.
        tries_threads: whether one thread may be taken instead where that is faster, as ours may.
    """

    folder: str | None
    shape: Mapping[str, Any]
    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    threads: int | None
    tries_threads: bool
    sampling: Mapping[str, float]
    loads: Sequence[PeerLoad]


def serve(package: str, open_model: Callable[[PeerJob], Generate]) -> None:
    """The whole program: read the job, open the model, run every load, write the seconds that each took."""
    raw = json.loads(sys.stdin.read())
    job = PeerJob(**{**raw, "loads": [PeerLoad(**each) for each in raw["loads"]]})
    began = time.monotonic()
    generate = open_model(job)
    result = {
        "version": importlib.metadata.version(package),
        "load_seconds": time.monotonic() - began,
        "seconds": [_timed(generate, load) for load in job.loads],
    }
    pathlib.Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")


def _timed(generate: Generate, load: PeerLoad) -> float:
    began = time.monotonic()
    count = generate(load)
    seconds = time.monotonic() - began
    wanted = sum(load.output_lengths)
    if count != wanted:
        raise SystemExit(f"{count} tokens were generated where {wanted} were asked for")
    return seconds
