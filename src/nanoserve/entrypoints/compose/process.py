"""The process and its machine, without torch: settings that must be made before torch is imported, full garbage collections, the release, and cores.

libgomp reads the environment once, when torch loads it. Its threads spin for milliseconds after each parallel region;
as soon as another process takes one of the cores, every region then waits for a descheduled thread that spins
against it. Twelve bfloat16 2048 x 2048 products on two busy cores took 190 ms that way and 42 ms with 10,000 spins,
which still cover the gap between two small operations.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from nanoserve.adapters.system.environment import version_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.early import CONTROL_GROUP, Launched, read_ahead, take_engine
from nanoserve.ports.engine_link import Prepare

SPIN_COUNT: Final = "10000"
_NEVER: Final = 2**31 - 1
_WAITING: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_UNLESS_SET: Final = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "KINETO_LOG_LEVEL": "99",
    "TRITON_STORE_BINARY_ONLY": "1",  # a kernel that is in the cache is read with all that lies beside it
}


def prepare_process() -> None:
    """Set variables that the user has not set; without effect on torch once it is imported."""
    if not any(name in os.environ for name in _WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def prepared_engine(settings: EngineSettings, *, in_process: bool) -> Iterator[Launched | None]:
    """A process that imports what an engine needs, while this one imports what a server needs; it ends with the context.

    None for an engine `in_process`, where several ranks compute the model, which start while the first one imports, and where it could not be started.
    """
    if settings.model is not None:
        read_ahead(settings.model)
    if (launched := take_engine(wanted=not in_process and settings.tensor_parallel_size == 1)) is None:
        yield None
        return
    try:
        from nanoserve.adapters.engine_process.wire.codec import encode_command  # noqa: PLC0415 - meanwhile

        with contextlib.suppress(OSError):  # it has ended: whoever would take it over starts another
            launched.connection.sendall(encode_command(Prepare(wakes_gpu=settings.device != "cpu")))
        yield launched
    finally:
        launched.end()


@contextlib.contextmanager
def without_full_collections() -> Iterator[None]:
    """Keep Python's collector from reading all old objects in the middle of a call, which takes it 100 ms and more; afterwards it may."""
    # `gc.freeze`, as in processes of ours, would keep for good what a library's caller drops later.
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        if before[2] < _NEVER:  # of several at once the first one's end counts
            gc.set_threshold(*before)


def silence_warnings() -> None:
    """Keep the warnings of libraries off standard error; for programs, not for callers of the library."""
    warnings.filterwarnings("ignore")


def installed_release() -> str:
    """The version of nanoserve that is installed; 0 if it runs without being installed."""
    return version_of("nanoserve") or "0"


_BFLOAT16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
_CPU_FACTS: Final = Path("/proc/cpuinfo")
_DRIVER: Final = Path("/dev/nvidiactl")


def usable_cores(*, logical: bool = False) -> int:
    """Physical or logical cores that this process may use: within its affinity and its container's quota, at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    all_logical = psutil.cpu_count() or 1
    threads_per_core = max(1, all_logical // (psutil.cpu_count(logical=False) or all_logical))
    return max(1, min(usable // (1 if logical else threads_per_core), _quota()))


def _quota() -> int:
    """Whole cores that the control group grants."""
    with contextlib.suppress(OSError, ValueError):  # `max` is no limit
        quota, period = map(int, (CONTROL_GROUP / "cpu.max").read_text().split())
        return max(1, quota // period)
    return 2**31


def has_gpu_driver() -> bool:
    """True if the machine has NVIDIA's driver."""
    return _DRIVER.exists()


def has_bfloat16() -> bool:
    """True if the processor multiplies bfloat16 in hardware; False if that cannot be found out."""
    with contextlib.suppress(OSError):
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
        entries = (line.partition(":") for line in lines)
        flags = next((value for name, _, value in entries if name.strip() in {"flags", "Features"}), "")
        return bool(_BFLOAT16_FLAGS & {*flags.split()})
    return False


class Stopwatch:
    """Cuts the time since it was made into `phases`, seconds by name, in the order in which they first ended; one that comes again is one phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """End a phase: the time since the last one ended belongs to `name`."""
        now = time.monotonic()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._since
        self._since = now
