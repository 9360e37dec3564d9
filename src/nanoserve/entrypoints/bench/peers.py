"""Runs the same prompts through another engine, in a process of its own that has ended before ours takes the memory.

The programs around those engines are in `benchmarks/peers` of the repository, and not in an installed package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.choices import choose_sizes, choose_threads, user_chose_threads
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.entrypoints.compose.shapes import shape_config
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import SamplingParams, set_by

CHECKOUT: Final = pathlib.Path(__file__).parents[4]
"""The repository, where this is run from one."""
_PACKAGES: Final = {"hf": "transformers", "vllm": "vllm"}


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
    """Raise `BadValueError` for a peer that cannot run here."""
    if peer is None:
        return
    package = _PACKAGES[peer]
    if not (CHECKOUT / "benchmarks" / "peers").is_dir():
        reason = "its program is in nanoserve's repository: clone it and pip install --editable it"
    elif importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed in this environment (pip install {package})"
    else:
        return
    raise BadValueError("vs", f"{peer} cannot be measured: {reason}")


def run_peer(
    peer: str, found: Survey, settings: EngineSettings, sampling: SamplingParams, loads: Sequence[BenchLoad]
) -> PeerRuns:
    """Run every load; raises `PeerFailedError` with the last line that the other engine wrote."""
    job = {
        "folder": found.folder,
        "shape": shape_config(settings.model),
        "device": found.device,
        "dtype": found.dtype,
        "max_model_len": max(max(map(len, each.prompts)) + max(each.output_lengths) for each in loads),
        "max_num_seqs": choose_sizes(settings, found.spec, found.device).max_num_seqs,
        "threads": choose_threads(settings),
        "tries_threads": not user_chose_threads(settings),
        "sampling": {name: getattr(sampling, name) for name in set_by(Door.BENCH)},
        "loads": [{"prompts": each.prompts, "output_lengths": each.output_lengths} for each in loads],
    }
    return PeerRuns(name=peer, **_answer(peer, job))


def _answer(peer: str, job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "result.json"
        done = subprocess.run(  # noqa: S603 - a program of ours
            _command(peer, str(path)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path])},
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise PeerFailedError(f"{peer} ended with exit code {done.returncode}: {lines[-1]}")
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return answer


def _command(peer: str, result_file: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"benchmarks.peers.{_PACKAGES[peer]}_peer", result_file]
