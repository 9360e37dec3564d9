"""Records which kernels Triton would compile for a real GPU, as rehearsals and as serving launch them, and runs none.

A module of its own process, where kernels are not interpreted: `python -m tests.interpreter.cuda.variants` prints, for each case,
how many variants were rehearsed, which ones serving alone has met, and the rows of logits that the vendor's library multiplies in rehearsals. Models have real sizes and no memory.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

import attrs
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from nanoserve.adapters.pytorch import models
from nanoserve.adapters.pytorch.cuda import building
from nanoserve.adapters.pytorch.cuda.batches import buckets
from nanoserve.adapters.pytorch.cuda.many_rows import VendorProducts
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.workspace import EVERYTHING, shape_and_score
from nanoserve.adapters.pytorch.lora.layout import LoraWeights
from nanoserve.adapters.pytorch.mixers.latent import gpu as latent_mixer
from nanoserve.entrypoints.compose.shapes import SHAPES
from nanoserve.kernels.latent_attention import launch as latents
from nanoserve.kernels.linear import launch as linear
from nanoserve.kernels.linear.gated import launch as gated
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.step import BlockCopy, Chunk, LoraLoad, StepPlan
from tests.plans import admitted

CASES: Final = (
    ("qwen2.5-0.5b", False),
    ("gemma-3-4b", False),
    ("qwen3-30b-a3b", False),
    ("gpt-oss-20b", False),
    ("deepseek-v3-9-layers", False),
    ("qwen3-next-12-layers", False),
    ("qwen3-next-12-layers", True),
    ("llama-3.2-1b", False),
)
"""Dense, windows, experts, MXFP4 and sinks, latents in 8-bit floats, states; states in deterministic serving; and a narrow cache."""
NARROW: Final = ("llama-3.2-1b",)
"""Keys and values of these are kept in 8-bit floats."""
HEADS: Final = {"llama-3.2-1b": "fp8", "gemma-3-4b": "int8"}
"""Forms of the head."""
ADAPTED: Final = {"llama-3.2-1b": 2, "qwen3-30b-a3b": 5}
"""Adapters of a step at the most."""
MOST_ROWS: Final = 136
MOST_TOKENS: Final = 4096
CHUNKS: Final = (1, 2, 7, 16, 17, 31, 64, 100, 129, 255, 256, 257, 520, 1000, 2047, 2048, 3000, 3960)
BESIDE: Final = (0, 3, MOST_ROWS - 1)
"""Rows that decode beside a chunk."""


class NoGpu(CudaDriver):  # type: ignore[misc]
    """Answers what Triton asks a driver before it compiles for an H100 or H200."""

    def __init__(self) -> None:
        pass

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Recorder:
    """Every variant that was launched, and by which kind of step first; and numbers of rows that rehearsals leave to the vendor."""

    def __init__(self) -> None:
        self.variants: dict[tuple[str, str], str] = {}
        self.rows = set[int]()
        self.step = ""

    def of(self, step: str) -> int:
        return sum(each == step for each in self.variants.values())


def launch(kernel: Any, recorder: Recorder, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """As `JITFunction.run`, but for all that follows the choice of a variant."""
    del grid, warmup
    *_, bind = kernel.device_caches[0]
    _, specialization, options = bind(*arguments, **named)
    recorder.variants.setdefault((kernel.fn.__name__, f"{specialization} {options}"), recorder.step)


def multiply(
    products: VendorProducts,
    x: Tensor,
    *_: object,
    recorder: Recorder,
    **__: object,
) -> None:
    """In the place of the vendor's products."""
    del products
    if recorder.step == "rehearsal":
        recorder.rows.add(len(x))


def two_of_each_layer(spec: ModelSpec) -> ModelSpec:
    return attrs.evolve(spec, layers=2 * tuple(dict.fromkeys(spec.layers)))


def plans(groups: int, adapters: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps of many sizes, each with its kind."""
    rows, tables = range(MOST_ROWS), [[1]] * groups
    lengths = [1 + 31 * row for row in rows]
    yield "admissions", {"admitted": [admitted(row, [1] * lengths[row], *tables) for row in rows]}
    for count in buckets(MOST_ROWS):
        for first in (0, MOST_ROWS - count):  # among short rows and among long ones
            yield f"{count} rows", {"decoding": range(first, first + count)}
    last = MOST_ROWS - 1
    for number, count in enumerate(CHUNKS):
        for beside in BESIDE:
            chunk = Chunk(last, 0, count, samples=number % 2 > 0)
            yield f"{count} tokens beside {beside}", {"chunks": [chunk], "decoding": range(beside)}
    for many in (2, 3, 60):
        chunks = [Chunk(last - each, each, 1 + each, samples=each > 1) for each in range(many)]
        yield f"{many} chunks", {"chunks": chunks, "decoding": [0]}
    sampling = attrs.asdict(attrs.evolve(EVERYTHING, prompt_logprobs=3), recurse=False)
    special = [admitted(row, [1] * 200, *tables, **sampling) for row in (0, last)]
    yield "special admissions", {"released": [0, last], "admitted": special}
    for count in (1, 200):
        yield "special chunks", {"chunks": [Chunk(last, 0, count, samples=True)], "decoding": [0, 1]}
    yield "special rows", {"decoding": rows}
    for count in CHUNKS:
        yield (
            f"{count} invariant tokens",
            {"chunks": [Chunk(last - 1, 0, count, samples=True)]},
        )
    for members in ([1], range(2, 20)):
        windows = [Chunk(row, 20, 9, samples=True, unverified=8) for row in members]
        yield f"{len(windows)} windows from {windows[0].row} on", {"chunks": windows}
    if adapters:
        loads = [LoraLoad(b"", slot) for slot in range(1, adapters + 1)]
        plain = (admitted(row, [1] * lengths[row], *tables) for row in rows)
        given = [attrs.evolve(each, lora_slot=each.row % (adapters + 1)) for each in plain]
        yield "adapted admissions", {"released": rows, "admitted": given, "lora_loads": loads}
        for count in buckets(MOST_ROWS):
            yield f"{count} adapted rows", {"decoding": range(count)}
        for count in CHUNKS:
            for beside in BESIDE:
                chunk = Chunk(last, 0, count, samples=True)
                yield (
                    f"{count} adapted tokens beside {beside}",
                    {"chunks": [chunk], "decoding": range(beside)},
                )
    yield "copies", {"copies": [BlockCopy(group, 1, 2) for group in range(groups)]}


def serve(runner: CudaRunner, groups: int, adapters: int, recorder: Recorder) -> None:
    for number, (kind, plan) in enumerate(plans(groups, adapters), start=1):
        recorder.step = kind
        parts: dict[str, Any] = {name: tuple(value) for name, value in plan.items()}
        runner.submit(StepPlan(step=number, invariant="invariant" in kind or "windows" in kind, **parts))


def late(name: str, recorder: Recorder, *, deterministic: bool) -> list[str]:
    """What serving launches and a rehearsal does not: each kernel with the step that meets it first."""
    spec, device = two_of_each_layer(SHAPES[name]), torch.device("meta")
    spec = spec.keeping("fp8") if name in NARROW else spec
    how: dict[str, Any] = {"keep": True, "quantize_head": HEADS.get(name)}
    model = models.build_random_model(spec, dtype=torch.bfloat16, device=device, seed=0, **how)
    sizes = EngineSizes(
        max_num_seqs=MOST_ROWS,
        max_num_batched_tokens=MOST_TOKENS,
        max_model_len=MOST_TOKENS + 256,
        vocab_size=spec.vocab_size,
        block_size=16,
        num_blocks=8,
        max_loras=ADAPTED.get(name, 0),
        max_lora_rank=64 if name in ADAPTED else 0,
    )
    runner, _ = building.build_runner(model, sizes, deterministic=deterministic)
    if (loras := runner.loras) is not None:
        loras._weights[b""] = LoraWeights(
            64, torch.empty(64 * loras.layout.size, dtype=torch.bfloat16, device=device)
        )
    recorder.variants.clear()
    recorder.rows = set()
    recorder.step = "rehearsal"
    shape_and_score(spec, runner._launcher._space, sizes)
    runner.rehearsal.run()
    runner._windows.rehearse()
    serve(runner, len(spec.cache_groups), sizes.max_loras, recorder)
    met = recorder.variants.items()
    return [f"{kernel} in a step of {step}" for (kernel, _), step in met if step != "rehearsal"]


def main() -> None:
    recorder = Recorder()
    driver.set_active(NoGpu())
    JITFunction.run = functools.partialmethod(launch, recorder)
    stand_in: Any = {"supports_pdl": lambda _: True, "SMALL_GPU": 132}
    vars(building).update(stand_in)
    for module in (gated, latent_mixer, latents, linear):
        vars(module).update(has_wgmma=stand_in["supports_pdl"])
    vars(models).update(fill_randomly=lambda *_, **__: None)  # there is nothing to fill
    # Operators without memory are Python functions, which would import torch's compiler for seconds, and are slow.
    sys.modules["torch._dynamo"] = compiler = types.ModuleType("torch._dynamo")
    vars(compiler).update(disable=lambda function, *_, **__: function)
    vars(torch).update(_dynamo=compiler)
    products: Any = VendorProducts
    products.multiply_plain = functools.partialmethod(multiply, recorder=recorder)
    found = {}
    with torch.inference_mode():
        for name, deterministic in CASES:
            missing = late(name, recorder, deterministic=deterministic)
            found[f"{name}{', deterministic' * deterministic}"] = (
                recorder.of("rehearsal"),
                missing,
                sorted(recorder.rows),
            )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
