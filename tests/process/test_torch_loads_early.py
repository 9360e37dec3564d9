"""Torch's libraries are loaded by the program of an engine's process before torch is imported, as torch itself loads them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

LOADED = """
import json, sys
from pathlib import Path
from nanoserve.entrypoints.compose.engine_host_program import load_torch

def libraries():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if "/torch/lib/" in line})

load_torch()
early, imported = libraries(), "torch" in sys.modules
import torch
print(json.dumps([early, imported, libraries(), torch.ones(3).sum().item()]))
"""


@pytest.mark.parametrize("elsewhere", [None, "/nowhere"])
def test_libraries_are_loaded_unless_others_are_named(elsewhere: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    if elsewhere is not None:
        environment["LD_LIBRARY_PATH"] = elsewhere
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    early, imported, all_of_torch, total = json.loads(done.stdout)
    assert not imported
    assert total == 3
    assert set(early) < set(all_of_torch)
    assert ("libtorch_cpu.so" in early) == (elsewhere is None)


LATER = """
import importlib, json, sys
from nanoserve.entrypoints.compose.engine_host_program import FIRST

def libraries():
    return {name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).endswith(".so")}

for name in FIRST:
    importlib.import_module(name)
before = libraries()
import nanoserve.entrypoints.compose.engine_host
print(json.dumps(["msgspec._core" in before, sorted(libraries() - before)]))
"""


def test_no_library_is_imported_while_those_of_torch_load() -> None:
    """It would wait for them, with Python's lock."""
    done = subprocess.run([sys.executable, "-c", LATER], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [True, []]


def test_a_process_whose_parent_is_gone_ends_well_while_libraries_load() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    program = "nanoserve.entrypoints.compose.engine_host_program"
    for _ in range(3):
        command = [sys.executable, "-P", "-m", program, str(theirs.fileno())]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    theirs.close()
