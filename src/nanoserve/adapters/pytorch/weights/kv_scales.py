"""Scales of kept keys and values in a checkpoint: one of a layer, or one of each of its KV heads.

Libraries name them `k_scale` and `v_scale` beside the projections or behind them (compressed-tensors, ModelOpt), `output_scale` of a
projection (earlier compressed-tensors, Quark), or `kv_scale` for both (AutoFP8). A layer without any has ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.checkpoint import tensors_in
from nanoserve.adapters.pytorch.weights.keeping import Model
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor
from nanoserve.ports.errors import ModelLoadError

_ENDS: Final = (".k_scale", ".v_scale", ".kv_scale", "k_proj.output_scale", "v_proj.output_scale")
_NAME: Final = re.compile(r"layers\.(\d+)\.[\w.]*?(?:(kv?|v)_scale|([kv])_proj\.output_scale)$")


def kv_scales(model: Model) -> dict[int, Tensor]:
    """By layer, where keys and values are kept in 8-bit floats, their scales, float32 [2, num_kv_heads]."""
    found = ((layer, part.kept_scales()) for layer, parts in enumerate(model.layers) for part in parts)
    return {layer: scales for layer, scales in found if scales is not None}


def fill_kv_scales(model: Model, folder: str | None = None, *, rank: int = 0, ranks: int = 1) -> None:
    """Fill them from a checkpoint (this rank's part), or with ones if it has none.

    Raises `ModelLoadError` for scales that are no positive numbers, of another shape, or of keys or values alone.
    """
    targets = kv_scales(model)
    for scales in targets.values():
        scales.fill_(1.0)
    if targets and folder is not None:
        read_kv_scales(targets, folder, rank=rank, ranks=ranks)


def read_kv_scales(targets: Mapping[int, Tensor], folder: str, *, rank: int, ranks: int) -> None:
    """Fill the scales of some layers; see `fill_kv_scales`."""
    found: dict[tuple[int, str], StoredTensor] = {}
    for stored in tensors_in(folder, wanted=_ENDS):
        match = _NAME.search(stored.name)
        layer, which = (int(match[1]), match[2] or match[3]) if match else (-1, "")
        if layer in targets:
            found.update(((layer, each), stored) for each in which)
    for (layer, which), stored in found.items():
        own = targets[layer]
        if (layer, "v" if which == "k" else "k") not in found:
            raise ModelLoadError(
                f"{stored.file}: {stored.name!r} is of {'keys' if which == 'k' else 'values'} alone: is a file missing?"
            )
        own["kv".index(which)] = _heads(stored, own.shape[1], rank, ranks)


def _heads(stored: StoredTensor, heads: int, rank: int, ranks: int) -> Tensor:
    """The scales of this rank's heads, of which each rank has so many."""
    numbers = stored.data.to(torch.float32).flatten()
    if not bool(numbers.isfinite().all()) or bool((numbers <= 0).any()):
        raise ModelLoadError(
            f"{stored.file}: {stored.name!r} must be finite and above 0: is the file damaged?"
        )
    if len(numbers) == 1:
        return numbers
    if len(numbers) != heads * ranks:
        message = f"{stored.file}: {stored.name!r} has shape {list(stored.shape)}; a layer with {heads * ranks} KV heads needs one scale, or as many"
        raise ModelLoadError(message)
    return numbers[rank * heads : (rank + 1) * heads]
