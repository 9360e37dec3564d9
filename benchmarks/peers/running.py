"""Runs the prompts of a benchmark through another engine, in a process of its own that has ended before ours takes the memory."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.measurement import BenchLoad
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.choices import choose_sizes, choose_threads, user_chose_threads
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.shapes import CONFIGS, PREFIX, is_shape
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.sampling import Door, SamplingParams, set_by

PEERS: Final = {"hf": "transformers", "vllm": "vllm", "lmdeploy": "lmdeploy"}
"""The packages, by what `--vs` takes."""


class PeerFailedError(NanoserveError):
    """The other engine could not run the prompts."""


@attrs.frozen(kw_only=True)
class PeerRuns:
    """Another engine's result: the seconds of each load, in order, and of loading the model."""

    name: str
    version: str
    load_seconds: float
    seconds: Sequence[float]


def check_peer(peer: str | None) -> None:
    """Raise `BadValueError` for a peer that is not installed."""
    if peer is not None and importlib.util.find_spec(PEERS[peer]) is None:
        raise BadValueError(
            "vs", f"{PEERS[peer]} is not installed in this environment (pip install {PEERS[peer]})"
        )


def run_peer(
    peer: str, found: Survey, settings: EngineSettings, sampling: SamplingParams, loads: Sequence[BenchLoad]
) -> PeerRuns:
    """Run every load; raises `PeerFailedError` with the last line that the other engine wrote."""
    name = str(settings.model).removeprefix(PREFIX).lower()
    job = {
        "folder": found.folder,
        "shape": CONFIGS[name] if is_shape(settings.model) else {},
        "device": found.device,
        "dtype": found.dtype,
        "max_model_len": max(max(map(len, each.prompts)) + max(each.output_lengths) for each in loads),
        "max_num_seqs": choose_sizes(settings, found.spec, found.device).max_num_seqs,
        "threads": choose_threads(settings),
        "tries_threads": not user_chose_threads(settings),
        "sampling": {name: getattr(sampling, name) for name in set_by(Door.BENCH)},
        "loads": [{"prompts": each.prompts, "output_lengths": each.output_lengths} for each in loads],
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "result.json"
        done = subprocess.run(
            peer_command(peer, str(path)), input=json.dumps(job), capture_output=True, text=True, check=False
        )
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise PeerFailedError(f"{peer} ended with exit code {done.returncode}: {lines[-1]}")
        return PeerRuns(name=peer, **json.loads(path.read_text(encoding="utf-8")))


def peer_command(peer: str, result_file: str) -> list[str]:
    """What runs a job from standard input and writes its result there."""
    return [sys.executable, "-m", f"benchmarks.peers.{PEERS[peer]}_peer", result_file]
