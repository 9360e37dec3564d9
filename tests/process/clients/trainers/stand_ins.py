"""What TRL wants beside itself that a CPU cannot have: a distribution named vllm, and kernels for a GPU.

TRL looks up the release of vllm and imports names from it, which it calls for NCCL alone.
"""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import torch

_MODULES = {
    "vllm/__init__.py": "LLM = RequestOutput = SamplingParams = None\n",
    "vllm/sampling_params.py": "StructuredOutputsParams = None\n",
    "vllm/utils/__init__.py": "",
    "vllm/utils/network_utils.py": "get_ip = get_open_port = None\n",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/weight_transfer/__init__.py": "",
    "vllm/distributed/weight_transfer/nccl_common.py": "trainer_init = None\n",
    "vllm/distributed/weight_transfer/packed_tensor.py": "packed_nccl_broadcast_producer = None\n",
    "vllm-0.30.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n",
    "vllm-0.30.0.dist-info/top_level.txt": "vllm\n",
}


def write_vllm(folder: pathlib.Path) -> pathlib.Path:
    """Write the distribution into a folder, to be put on PYTHONPATH."""
    for name, text in _MODULES.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    return folder


def attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    *_: int,
    softmax_scale: float,
    **_options: Any,
) -> torch.Tensor:
    """Causal attention of segments laid end to end, [T, heads, head_dim], each over its own keys, as FlashAttention computes it."""
    segments = []
    bounds = zip(
        *(ends.tolist() for each in (query_ends, key_ends) for ends in (each[:-1], each[1:])), strict=True
    )
    for start, stop, first, last in bounds:
        visible = torch.ones(stop - start, last - first, dtype=torch.bool)
        visible = visible.tril(last - first - (stop - start))
        parts = [each.transpose(0, 1) for each in (queries[start:stop], keys[first:last], values[first:last])]
        query, key, value = parts
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, scale=softmax_scale, enable_gqa=True
        )
        segments.append(found.transpose(0, 1))
    return torch.cat(segments)


def install_kernels() -> None:
    """Let this process train on a CPU: TRL fetches its attention from the package kernels and asks which GPU there is."""
    kernels = types.ModuleType("kernels")
    kernels.get_kernel = lambda *_, **_options: types.SimpleNamespace(flash_attn_varlen_func=attention)  # type: ignore[attr-defined]
    sys.modules["kernels"] = kernels
    torch.cuda.get_device_name = lambda device=None: f"a CPU in place of {device}"
