"""Compiled for a real GPU, kernels over rows of odd sizes load no more at a time than is aligned; needs no GPU."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from tests.interpreter.cuda.test_compiles import REAL_COMPILES

PROGRAM = (
    REAL_COMPILES.partition("counter = ")[0]
    + """
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from nanoserve.kernels.head_linear.cases import check_head_linear
from nanoserve.kernels.latent_attention.cases import Case
from nanoserve.kernels.latent_attention.tuning import BlockSizes
from nanoserve.kernels.latent_cache import cases as latent_cache
from nanoserve.kernels.trial import Inputs, LatentHeads
from tests.interpreter.cuda.alignment import misaligned

launch, compiled = JITFunction.run, {}


def compile_only(kernel, *arguments, warmup, **named):
    made = launch(kernel, *arguments, warmup=True, **named)
    compiled[id(made)] = kernel.fn.__name__, made
    return made


JITFunction.run = compile_only


@triton.jit
def promise_too_much(source_ptr, target_ptr, start):
    places = tl.multiple_of(start + tl.arange(0, 256), 4)
    tl.store(target_ptr + tl.arange(0, 256), tl.load(source_ptr + places))


for dtype in (torch.float32, torch.bfloat16):
    inputs = Inputs(torch.device("cpu"), dtype)
    for latent_dim, rope_dim in ((20, 6), (24, 8), (19, 8)):
        sizes = LatentHeads(3, latent_dim, rope_dim, nope_dim=10, value_dim=14)
        case = Case.of(inputs, sizes, [(0, 5), (40, 2)])
        for blocks in (BlockSizes(16, 16, 4, 2), None):
            case.tiled(blocks)
            case.decoded(3, blocks)
        list(latent_cache.Case.of(inputs, sizes, latent_cache.TOKENS).compare())
        list(check_head_linear(inputs, sizes, 5))
found = {}
for name, made in compiled.values():
    for access in misaligned(made.asm["ptx"], made.asm["ttir"]):
        found.setdefault(name, access)
assert len(compiled) > 20 and not found, found

compiled.clear()
numbers = torch.zeros(8)
promise_too_much[(1,)](numbers, numbers, 3, num_warps=1)
((_, made),) = compiled.values()
wide = misaligned(made.asm["ptx"], made.asm["ttir"])
assert {(access.size, access.divisor) for access in wide} == {(16, 4)}, wide
"""
)


def test_kernels_load_what_is_aligned(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    path = [str(pathlib.Path(__file__).parents[3]), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**environment, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
