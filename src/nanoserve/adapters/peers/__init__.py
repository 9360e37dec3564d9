"""Other engines, to be measured on the same prompts: each is a program that runs in a process of its own.

A program reads one JSON job on standard input and writes its JSON result to the file that its argument names, because
libraries print what they like to standard output. `job.py` says what both look like.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Final

_MODULES: Final[Mapping[str, tuple[str, str]]] = {
    "hf": ("transformers", "nanoserve.adapters.peers.transformers_peer"),
    "vllm": ("vllm", "nanoserve.adapters.peers.vllm_peer"),
}


def why_missing(peer: str) -> str | None:
    """Why a peer cannot be run here; None where it can. Imports nothing."""
    package, _ = _MODULES[peer]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed in this environment (pip install {package})"
    return None


def command(peer: str, result_file: str) -> list[str]:
    """The program of a peer, as arguments for a new process."""
    return [sys.executable, "-m", _MODULES[peer][1], result_file]
