"""Facts about the machine and the installed software, as a bug report needs them.

Versions come from package metadata, so nothing heavy is imported and a broken installation can still be described.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Any

import psutil

PACKAGES = (
    *("nanoserve", "torch", "triton", "transformers", "tokenizers", "safetensors"),
    *("gguf", "huggingface-hub", "numpy"),
)
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")
GPU_FIELDS = ("name", "memory.total", "memory.used", "driver_version", "compute_cap")


def environment() -> dict[str, Any]:
    """Plain values only (text, numbers, lists, dicts), so that it prints as JSON.

    `memory` is in bytes; `packages` maps a name to its version or None; `gpus` has one dict per NVIDIA GPU,
    with nvidia-smi's own units, and is empty if there is none or it does not answer.
    """
    memory = psutil.virtual_memory()
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "cpu": _cpu(pathlib.Path("/proc/cpuinfo")),
        "memory": {"total": memory.total, "available": memory.available},
        "gpus": _gpus(),
    }


def version_of(package: str) -> str | None:
    """The version of a package that is installed; else None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu(cpuinfo: pathlib.Path) -> dict[str, Any]:
    try:  # the first processor's lines, each a name and a value; some kernels have no such file
        first = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = ""
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def _gpus() -> list[dict[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.splitlines() if line.strip()]
    return [dict(zip(GPU_FIELDS, row, strict=False)) for row in rows]
