"""Kernels that Triton prepares in the middle of serving are counted."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest
from triton import knobs

from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.kernels.tiles import SHARED_MEMORY

REAL_COMPILES = """
import json
from typing import get_args

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.kernels.pointwise.triton import gated_activation_kernel
from nanoserve.ports.layer_spec import Activation


class NoGpu(CudaDriver):
    def __init__(self):
        pass

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(NoGpu())
counter = CompileCounter()
pointer = MockTensor("torch.float32")


def prepare(size, activation="silu"):
    sizes = {"SIZE": size, "BLOCK": 64, "ACTIVATION": activation, "PDL": False}
    gated_activation_kernel.warmup(pointer, pointer, grid=(1,), **sizes, num_warps=1)


for activation in get_args(Activation):  # a branch that the interpreter does not enter is compiled all the same
    prepare(64, activation)
counter.start()
prepare(64)
before = counter.late
prepare(128)
prepare(256)
prepare(256)
print(json.dumps([before, counter.late]))
"""


def test_what_comes_after_the_start_is_late_and_an_earlier_listener_hears_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **named: heard.append(named))
    first, second = CompileCounter(), CompileCounter()

    def prepare(kernel: str) -> None:
        assert knobs.compilation.listener is not None
        source: Any = types.SimpleNamespace(name=kernel)
        times = types.SimpleNamespace(total=1)
        knobs.compilation.listener(
            src=source, metadata={}, metadata_group={}, times=times, cache_hit=kernel == "loaded"
        )

    prepare("early")
    first.start()
    prepare("compiled")
    second.start()
    prepare("loaded")
    assert (first.late, second.late) == (2, 1)
    assert [each["src"].name for each in heard] == ["early", "compiled", "loaded"]
    assert set(heard[-1]) == {"src", "metadata", "metadata_group", "times", "cache_hit"}


def run_compiling(folder: pathlib.Path, program: str, *given: str) -> subprocess.CompletedProcess[str]:
    """Run a program with Triton's compiler, whose cache is in the folder, instead of its interpreter."""
    (folder / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_STORE_BINARY_ONLY": "0"}
    command = [sys.executable, str(folder / "program.py"), *given]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_compiled_and_loaded_kernels_are_both_counted(tmp_path: pathlib.Path) -> None:
    counts = []
    for _ in range(2):
        done = run_compiling(tmp_path, REAL_COMPILES)
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout))
    assert counts == [[0, 2], [0, 2]]


LATENTS = (
    REAL_COMPILES.partition("counter = ")[0]
    + """
import torch

from nanoserve.kernels.latent_attention.triton import attend_to_rows
from nanoserve.kernels.latent_attention.tuning import CHUNK, decode_block

half, whole, single = (MockTensor(f"torch.{name}") for name in ("bfloat16", "int32", "float32"))
pointers = [half] * 3 + [single] * 3 + [whole] * 3
sizes = {"NUM_HEADS": 16, "BLOCK_SIZE": 16, "LATENT": 512, "ROPE": 64, "CHUNK": CHUNK, "PADDED_ROPE": 64, "KEYS": 0}
found = []
for programs in (1, 133):
    heads, tokens, warps, stages = decode_block(576, torch.bfloat16, programs=programs)
    sizes |= {"HEADS": heads, "TOKENS": tokens, "STAGES": stages, "WIDTH": 1, "SPLIT": False, "PDL": True}
    made = attend_to_rows.warmup(*pointers, 128, 9216, 0.1, grid=(1,), **sizes, num_warps=warps)
    found.append([made.metadata.shared, "wgmma.mma_async" in made.asm["ptx"]])
print(json.dumps(found))
"""
)
RESERVED = 1024
"""Bytes of shared memory that each program takes beside its own."""


def test_programs_over_latents_have_a_multiprocessor_to_themselves_or_share_it_by_two(
    tmp_path: pathlib.Path,
) -> None:
    done = run_compiling(tmp_path, LATENTS)
    assert done.returncode == 0, done.stderr
    (alone, is_asynchronous), (beside, _) = json.loads(done.stdout)
    assert SHARED_MEMORY // 2 < alone <= SHARED_MEMORY
    assert 2 * (beside + RESERVED) <= SHARED_MEMORY + RESERVED
    assert is_asynchronous
