from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys

import pytest

from nanoserve.adapters.system import environment as module
from nanoserve.adapters.system.environment import environment


def test_facts_are_those_of_this_process_and_print_as_json() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == platform.python_version()
    assert facts["packages"]["transformers"] == importlib.metadata.version("transformers")
    assert facts["cpu"]["usable_threads"] == len(os.sched_getaffinity(0))
    assert 0 < facts["memory"]["available"] <= facts["memory"]["total"]


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert module.version_of("no-such-package-at-all") is None


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        (
            "processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu avx2 amx_tile avx512_bf16 avx20\n\nprocessor\t: 1\n",
            "Fast One",
            ["avx2", "avx512_bf16", "amx_tile"],
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve bf16\n", None, ["asimd", "bf16", "sve"]),
        (None, None, []),
    ],
)
def test_the_processor_is_read_from_the_kernel(
    tmp_path: pathlib.Path, text: str | None, model: str | None, flags: list[str]
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    found = module._cpu(tmp_path / "cpuinfo")
    assert found["model"] == model or (model is None and found["model"])
    assert found["flags"] == flags


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            'echo "NVIDIA H100, 81559 MiB, 12 MiB, 550.54, 9.0"; echo "NVIDIA H100, 81559 MiB, 0 MiB, 550.54, 9.0"',
            ["12 MiB", "0 MiB"],
        ),
        ("echo broken >&2; exit 9", []),
        ("true", []),
    ],
)
def test_gpus_are_what_nvidia_smi_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: list[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gpus = environment()["gpus"]
    assert [gpu["memory.used"] for gpu in gpus] == expected
    assert all(gpu["name"] == "NVIDIA H100" and gpu["compute_cap"] == "9.0" for gpu in gpus)


def test_no_gpu_is_an_empty_list(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["gpus"] == []


def test_torch_is_not_imported() -> None:
    code = "import sys, nanoserve.adapters.system.environment as e; e.environment(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
