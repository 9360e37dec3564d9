"""How long steps take on a GPU that was not measured, from a model's shape and the GPU's data sheet.

What a GPU reaches of its data sheet was measured with this engine on one H200 (docs/performance.md) and is taken for all:
treat what comes of it as within a third or so, and record a step log (`nanoserve bench calibrate`) where it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import Full, Latent, ModelSpec
from nanoserve_cluster.entrypoints.simulate.model_cost import prefill_flops, weight_elements
from nanoserve_cluster.ports.step_cost import StepCost

ELEMENT_BYTES: Final = 2
READ_SHARE: Final = 0.96
"""The reached fraction of the data sheet's bandwidth, where weights are read."""
KV_SHARE: Final = 0.7
MULTIPLY_SHARE: Final = 0.7
ATTEND_SHARE: Final = 0.4
STEP_SECONDS: Final = 0.5e-3
ROW_SECONDS: Final = 5e-6
REDUCE_SECONDS: Final = 4.5e-6
"""Seconds of one all-reduce of a few rows; there are two in each layer."""
EXPERT_ROWS: Final = 64
"""Rows of the step whose chosen experts are counted as read."""
MEMORY_SHARE: Final = 0.9
GIGA: Final = 1e9


@attrs.frozen
class Gpu:
    """A data sheet: GB/s of its memory, dense bfloat16 TFLOP/s, GB, and GB/s of an all-reduce between two of them."""

    bandwidth: float
    compute: float
    memory: float
    link: float


GPUS: Final[Mapping[str, Gpu]] = {
    "h100": Gpu(3350, 989, 80, 270),
    "h200": Gpu(4800, 989, 141, 270),
    "b200": Gpu(8000, 2250, 180, 500),
    "a100-40gb": Gpu(1555, 312, 40, 180),
    "a100": Gpu(2039, 312, 80, 180),
    "l40s": Gpu(864, 362, 48, 12),
    "l4": Gpu(300, 121, 24, 12),
    "a10": Gpu(600, 125, 24, 12),
    "rtx4090": Gpu(1008, 165, 24, 12),
}


def step_cost(spec: ModelSpec, gpu: Gpu, count: int) -> StepCost:
    """A model's weights split over `count` GPUs of one replica (tensor parallel)."""
    first, second, third = (prefill_flops(spec, length) for length in (1, 2, 3))
    flops = count * gpu.compute * 1e12
    bandwidth = count * gpu.bandwidth * GIGA
    reduced = 2 * spec.num_layers if count > 1 else 0
    reduced_bytes = reduced * spec.hidden_size * ELEMENT_BYTES
    return StepCost(
        fixed=STEP_SECONDS + reduced * REDUCE_SECONDS,
        weights=ELEMENT_BYTES * weight_elements(spec, EXPERT_ROWS) / (bandwidth * READ_SHARE),
        token=(second - first) / (flops * MULTIPLY_SHARE) + reduced_bytes / (gpu.link * GIGA),
        row=ROW_SECONDS,
        context=spec.kv_bytes_per_token(ELEMENT_BYTES) / (bandwidth * KV_SHARE),
        pair=(third - 2 * second + first) / (flops * ATTEND_SHARE),
    )


def check_simulated(spec: ModelSpec) -> None:
    """Raise `BadValueError` for a model whose cache forgets or keeps nothing: the simulation keeps every token of a sequence."""
    if not all(isinstance(group.kind, (Full, Latent)) for group in spec.cache_groups):
        message = "has sliding windows or recurrent states, or is an encoder, which are not simulated yet; take a model with full attention"
        raise BadValueError("model", message)


def kv_blocks(spec: ModelSpec, gpu: Gpu, count: int, block_size: int) -> int:
    """Blocks that fit beside the weights; raises `BadValueError` if there is no room for any."""
    embeddings = 0 if spec.tied_embeddings else spec.hidden_size * spec.vocab_size
    # So many rows choose every expert.
    weights = ELEMENT_BYTES * (weight_elements(spec, 1e6) + embeddings)
    memory = count * gpu.memory * GIGA * MEMORY_SHARE
    found = int((memory - weights) / (block_size * spec.kv_bytes_per_token(ELEMENT_BYTES)))
    if found < 1:
        message = (
            f"the weights take {weights / GIGA:.0f} GB and {count} GPU(s) offer {memory / GIGA:.0f}; give each "
            "replica more with --gpus-per-replica, or take a larger --gpu"
        )
        raise BadValueError("gpus_per_replica", message)
    return found
