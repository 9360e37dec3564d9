"""Compiled for a real GPU, kernels over rows of odd sizes load no more at a time than is aligned; needs no GPU.

And those whose bits have to be the same in every step are one kernel, wherever its inputs lie.
"""

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

from nanoserve.kernels.delta_rule.cases import random_states, random_tokens, random_weights
from nanoserve.kernels.delta_rule.launch import delta_rule_chunks, delta_rule_newest
from nanoserve.kernels.latent_attention.cases import Case, ExpandedCase, check_head_linear
from nanoserve.kernels.recurrent import DeltaHeads
from nanoserve.kernels.rope_and_cache.cases import check_write_latents
from nanoserve.kernels.tiles import BlockSizes
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import LatentHeads
from tests.interpreter.cuda.alignment import misaligned
from tests.interpreter.kernels.latent_rows import decoded

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
            decoded(case, 3, blocks)
        ExpandedCase.of(inputs, sizes, [(0, 5), (40, 2)]).tiled()
        list(check_write_latents(inputs, sizes))
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

compiled.clear()
inputs, heads = Inputs(torch.device("cpu"), torch.bfloat16), DeltaHeads(3, 6, 16, 16, 4)
weights, states = random_weights(inputs, heads), random_states(inputs, heads, [], 2)
projected, out = random_tokens(inputs, heads, 4), inputs.poisoned(4, heads.inner)
row, tables = inputs.these([0]), inputs.these([[1]])
for first in (0, 1):
    what = projected[first:], states, weights, heads, out[first:]
    assert (projected[first:].data_ptr() % 16 > 0) == (first > 0)
    delta_rule_newest(*what, batch_rows=row, lengths=row + 1, tables=tables, invariant=True)
    delta_rule_chunks(*what, spans=inputs.these([[0, 0, 3, 0]]), tables=tables)
names = [name for name, _ in compiled.values()]
assert names.count("delta_rule_kernel") == 1, names
"""
)


def test_kernels_load_what_is_aligned_and_one_serves_all_deterministic_steps(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_STORE_BINARY_ONLY": "0"}
    path = [str(pathlib.Path(__file__).parents[3]), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**environment, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
