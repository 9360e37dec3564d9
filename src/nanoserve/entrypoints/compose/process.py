"""Settings of the process that precede the import of torch and transformers: how threads wait, and silence; and its release.

libgomp reads the environment once, when torch loads it. Its threads spin for milliseconds after each parallel region;
as soon as another process takes one of the cores, every region then waits for a descheduled thread that spins
against it. Twelve bfloat16 2048 x 2048 products on two busy cores took 190 ms that way and 42 ms with 10,000 spins,
which still cover the gap between two small operations.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from typing import Final

SPIN_COUNT: Final = "10000"
_WAITING: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_QUIET: Final = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "KINETO_LOG_LEVEL": "99",
}


def prepare_process() -> None:
    """Set what the user has not set; without effect on torch once it is imported."""
    if not any(name in os.environ for name in _WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def silence_warnings() -> None:
    """Keep the warnings of libraries off standard error; for programs, not for callers of the library."""
    warnings.filterwarnings("ignore")


def installed_release() -> str:
    """The version of nanoserve that is installed; 0 where it runs without being installed."""
    try:
        return importlib.metadata.version("nanoserve")
    except importlib.metadata.PackageNotFoundError:
        return "0"
