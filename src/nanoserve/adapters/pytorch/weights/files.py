"""Which safetensors files a model folder holds: one, or the shards that its index names."""

from __future__ import annotations

import json
from pathlib import Path

from nanoserve.ports.errors import ModelLoadError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint, in the order of their names.

    Raises:
        ModelLoadError: there is no checkpoint, its index cannot be read, or a shard that it names is missing.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise ModelLoadError(f"{folder}: holds neither {SINGLE} nor {INDEX}: is this a model folder?")
    shards = _shards(index)
    for shard in shards:
        if not shard.is_file():
            raise ModelLoadError(f"{shard}: the shard is missing, though {INDEX} names it: download it again")
    return shards


def _shards(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [index.parent / name for name in sorted(set(weight_map.values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"{index}: not a readable index of shards ({error!r}): download it again"
        ) from error
