"""Runs the same prompts through another engine, in a process of its own that has ended before ours takes the memory."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.bench.workloads import Load
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.bootstrap import peer_command, why_peer_is_missing
from nanoserve.entrypoints.compose.choices import choose_sizes, choose_threads, user_chose_threads
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import SamplingParams, set_by


class PeerFailedError(NanoserveError):
    """The other engine could not run the prompts."""


@attrs.frozen(kw_only=True)
class PeerRuns:
    """What another engine did: the seconds of each load, in order, and of loading the model."""

    name: str
    version: str
    load_seconds: float
    seconds: Sequence[float]


def check_peer(peer: str | None) -> None:
    """Raise `BadValueError` for a peer that cannot run here."""
    reason = None if peer is None else why_peer_is_missing(peer)
    if reason is not None:
        raise BadValueError("vs", f"{peer} cannot be measured: {reason}")


def run_peer(
    peer: str, found: Survey, settings: EngineSettings, sampling: SamplingParams, loads: Sequence[Load]
) -> PeerRuns:
    """Run every load; raises `PeerFailedError` with the last line that the other engine wrote."""
    job = {
        "folder": found.folder,
        "shape": attrs.asdict(found.spec),
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
            peer_command(peer, str(path)), input=json.dumps(job), capture_output=True, text=True, check=False
        )
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise PeerFailedError(f"{peer} ended with exit code {done.returncode}: {lines[-1]}")
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return answer
