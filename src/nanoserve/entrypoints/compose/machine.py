"""Facts about the machine, found without torch: cores, and what the processor can multiply."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import psutil

_BFLOAT16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
_CPU_FACTS: Final = Path("/proc/cpuinfo")
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_OWN_STATUS: Final = Path("/proc/self/stat")


def usable_cores() -> int:
    """Physical cores that this process may use: within its affinity and its container's quota, at least 1."""
    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    all_logical = psutil.cpu_count() or 1
    threads_per_core = max(1, all_logical // (psutil.cpu_count(logical=False) or all_logical))
    return max(1, min(logical // threads_per_core, _quota()))


def _quota() -> int:
    """Whole cores that the control group grants."""
    try:
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 2**31
    return 2**31 if quota == "max" else max(1, int(quota) // int(period))


def has_bfloat16() -> bool:
    """True if the processor multiplies bfloat16 in hardware; False where that cannot be found out."""
    return bool(_BFLOAT16_FLAGS & set(_cpu_fact("flags", "Features").split()))


def _cpu_fact(*names: str) -> str:
    """The first entry of that name in the kernel's list; empty where there is none."""
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in names), "")


def process_age() -> float:
    """Seconds since this process was started, to about a hundredth; on Linux only, elsewhere its processor seconds."""
    try:
        fields = _OWN_STATUS.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
