"""Which tiles decode steps run fastest with, measured in the whole step: run it on a new kind of GPU.

`python -m benchmarks.gpu_tiles --model shape:llama-3.2-1b --batch 1 8 64 256 --context 1000`. Each alternative replaces the
configuration of one operation, is captured with the rest of the step, and is timed beside the configuration in use. What wins
by more than the spread belongs into `kernels/paged_attention/tuning.py` or `kernels/linear/tuning.py`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from unittest import mock

import torch

from benchmarks import gpu_steps
from benchmarks.gpu_ranks import need_gpu
from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import DecoderModel, build_random_model
from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.kernels.forms import Form
from nanoserve.kernels.linear import launch as linear
from nanoserve.kernels.linear.tuning import RowTile, row_tile
from nanoserve.kernels.paged_attention import tuning as attention
from nanoserve.kernels.paged_attention.tuning import Tiling
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import ModelSpec

FEW_ROWS = 8
SPLITS = (4, 8, 16, 32)
EARLY = [
    Tiling(tokens, warps, 5, early=True) for tokens, warps in ((32, 2), (32, 4), (64, 2), (64, 4), (128, 4))
]
STREAMING = [
    Tiling(tokens, warps, stages, early=False)
    for tokens, warps, stages in (
        (16, 1, 5),
        (16, 1, 7),
        (32, 1, 5),
        (32, 1, 7),
        (32, 2, 7),
        (64, 1, 5),
        (64, 1, 7),
        (64, 2, 5),
    )
]
ROW_TILES = ((1, 8), (2, 1), (2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8), (8, 8))
"""Rows of the weight per program, and its warps."""


def main() -> None:
    """Time what is in use, then each alternative."""
    arguments = _arguments()
    need_gpu()
    spec, batch = find_shape(arguments.model), max(arguments.batch)
    spec = spec.keeping("fp8") if arguments.kv_cache_dtype == "fp8" else spec
    model = build_random_model(
        spec, dtype=torch.bfloat16, device=torch.device("cuda"), seed=0, quantization=arguments.quantization
    )
    sizes = EngineSizes(
        max_num_seqs=batch,
        max_num_batched_tokens=max(batch, 2048),
        max_model_len=arguments.context + 256,
        vocab_size=spec.vocab_size,
        block_size=gpu_steps.BLOCK_SIZE,
        num_blocks=(arguments.context // gpu_steps.BLOCK_SIZE + 17) * batch,
    )
    runner, _ = build_runner(model, sizes)
    for size in arguments.batch:
        in_use = timed(runner, spec, size, arguments.context)
        print(f"batch {size}: {in_use:.1f} us in use", flush=True)
        for name, alternative in alternatives(runner, model, size):
            with alternative:
                try:
                    found = timed(runner, spec, size, arguments.context)
                except (RuntimeError, ValueError) as error:
                    print(f"    {name:44s} {type(error).__name__}: {str(error)[:60]}", flush=True)
                    continue
            print(f"    {name:44s} {found:8.1f} {found - in_use:+8.1f}", flush=True)


def timed(runner: CudaRunner, spec: ModelSpec, batch: int, context: int) -> float:
    """Microseconds of a step, captured anew."""
    graphs = runner._decoding._graphs  # noqa: SLF001 - the benchmark changes what they were captured from
    assert graphs is not None
    graphs.drop()
    return gpu_steps.time_steps(runner, spec, batch, context)[0]


def alternatives(
    runner: CudaRunner, model: DecoderModel, batch: int
) -> Iterator[tuple[str, contextlib.AbstractContextManager[object]]]:
    """Names, and contexts in which each holds."""
    for tiling in EARLY if batch <= FEW_ROWS else STREAMING:
        for splits in SPLITS if batch <= FEW_ROWS else (1, 2, 4):
            name = f"attention {tiling.tokens} tokens {tiling.warps} warps {tiling.stages} stages {splits} splits"
            yield name, _attention(runner, tiling, splits)
    if batch > 1:
        return
    products = {each.name: (each.linear.out_features, each.linear.in_features) for each in model.products()}
    for name, shape in products.items():
        for rows, warps in ROW_TILES:
            yield f"{name}, {rows} rows {warps} warps", _row_tile(shape, rows, warps)


@contextlib.contextmanager
def _attention(runner: CudaRunner, tiling: Tiling, splits: int) -> Iterator[None]:
    with (
        mock.patch.object(attention, "choose_tile", return_value=tiling),
        mock.patch.object(attention, "is_copied", return_value=False),
        mock.patch.object(runner._decoding.keys, "_choose_splits", return_value=splits),  # noqa: SLF001,
    ):
        yield


def _row_tile(shape: tuple[int, int], rows: int, warps: int) -> contextlib.AbstractContextManager[object]:
    def chosen(n: int, k: int, bits: int, *, gate: bool, form: Form) -> RowTile:
        usual = row_tile(n, k, bits, gate=gate, form=form)
        return usual._replace(rows=rows, warps=warps) if (n, k) == shape else usual

    return mock.patch.object(linear, "row_tile", chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="shape:llama-3.2-1b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", "fp8"])
    parser.add_argument("--quantization", choices=["fp8", "int4"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
