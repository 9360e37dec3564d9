"""Copies the tensors of a safetensors checkpoint to where a model wants them, in one pass over mapped files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanoserve.adapters.pytorch.weights.files import checkpoint_files
from nanoserve.ports.errors import ModelLoadError

BUFFERS = ("rotary_emb.inv_freq",)
"""Name endings of tensors that old checkpoints carry though they follow from the config."""

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""What a weight may be stored in; integers and 8-bit floats mean nothing without the scales of their quantizer."""
LFS_POINTER = b"version https://git-lfs"


def load_checkpoint(folder: str, destinations: Mapping[str, Tensor], *, tied_head: bool) -> None:
    """Fill every destination with the tensor of its name, converted to its dtype.

    The files are memory-mapped and each tensor is copied once, so memory peaks near the size of the model. With a
    tied head, the checkpoint's own copy of it is ignored.

    Raises:
        ModelLoadError: a file is missing or corrupt; a tensor is missing, left over, of another shape or no float.
    """
    ignored = (*BUFFERS, "lm_head.weight") if tied_head else BUFFERS
    missing = dict.fromkeys(destinations)
    for file in checkpoint_files(Path(folder)):
        for name, tensor in _tensors(file, ignored):
            if name not in destinations:
                raise ModelLoadError(
                    f"{file}: tensor {name!r} has no place in this model: is its config right?"
                )
            _copy(file, name, tensor, destinations[name])
            missing.pop(name, None)
    if missing:
        names = ", ".join(list(missing)[:5]) + (", ..." if len(missing) > 5 else "")
        raise ModelLoadError(
            f"{folder}: the checkpoint lacks {len(missing)} tensors that its config asks for: {names}"
        )


def _tensors(file: Path, ignored: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                if not name.endswith(ignored):
                    yield name, opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        if _is_lfs_pointer(file):
            raise ModelLoadError(
                f"{file}: a Git LFS pointer and not the weights: run git lfs pull"
            ) from error
        message = f"{file}: not a readable safetensors file ({error}): download it again"
        raise ModelLoadError(message) from error


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(LFS_POINTER)) == LFS_POINTER


def _copy(file: Path, name: str, source: Tensor, destination: Tensor) -> None:
    if source.shape != destination.shape:
        found, wanted = list(source.shape), list(destination.shape)
        raise ModelLoadError(f"{file}: tensor {name!r} has shape {found}, but the config asks for {wanted}")
    if source.dtype not in DTYPES:
        raise ModelLoadError(
            f"{file}: tensor {name!r} is {source.dtype}: quantized checkpoints are not supported"
        )
    destination.copy_(source)
