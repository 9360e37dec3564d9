"""Builds what the settings ask for beside the device's KV cache: how many slots of host memory, and the directory behind them."""

from __future__ import annotations

from pathlib import Path

from nanoserve.adapters.kv_directory.block_file import fingerprint
from nanoserve.adapters.kv_directory.directory import FileDirectory
from nanoserve.adapters.pytorch.devices import DEVICES, DTYPES
from nanoserve.adapters.pytorch.memory import available_memory
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv_tiers import HostSlots


def count_slots(settings: EngineSettings, found: Survey) -> int:
    """Slots of host memory, each for one block; 0 where none is asked for.

    Raises `BadValueError` where blocks cannot be offloaded, or there is no room for one.
    """
    memory = settings.kv_offload_memory
    if memory is None:
        if settings.kv_offload_dir is not None:
            raise BadValueError("kv_offload_dir", "needs --kv-offload-memory, through which blocks pass")
        return 0
    _check_possible(settings, found)
    (group,) = found.spec.cache_groups
    block = group.page_bytes(settings.block_size, DTYPES[found.dtype].itemsize)
    if memory < block:
        raise BadValueError(
            "kv_offload_memory", f"must hold at least one block of {block} bytes, got {memory}"
        )
    free = available_memory(DEVICES["cpu"])
    if memory > free:
        message = f"{memory} bytes were asked for and the machine has {free} free; lower it"
        raise BadValueError("kv_offload_memory", message)
    return memory // block


def _check_possible(settings: EngineSettings, found: Survey) -> None:
    name = "kv_offload_memory"
    if settings.tensor_parallel_size > 1:
        raise BadValueError(name, "is not available beside tensor_parallel_size yet; leave one of them out")
    if not settings.enable_prefix_caching:
        raise BadValueError(name, "keeps prefixes, and prefix caching is off; leave one of them out")
    kinds = [group.kind.name for group in found.spec.cache_groups]
    if len(kinds) > 1 or kinds[0] not in {"full", "latent"}:
        message = f"cannot carry what {found.spec.architecture} keeps ({', '.join(kinds)}): windows and states; leave it out"
        raise BadValueError(name, message)


def open_directory(
    settings: EngineSettings, found: Survey, runner: object, num_slots: int
) -> FileDirectory | None:
    """The directory behind a runner's slots; None where none is asked for. Raises `BadValueError` where it cannot be used."""
    slots: HostSlots | None = getattr(runner, "host", None)
    if slots is None or settings.kv_offload_dir is None:
        return None
    belongs_to = fingerprint(
        found.folder,
        *(found.spec, found.dtype, found.device, settings.quantization),
        *(settings.block_size, slots.slot_bytes, settings.isolation),
    )
    return FileDirectory(
        Path(settings.kv_offload_dir).expanduser(),
        belongs_to,
        slots,
        num_slots=num_slots,
        max_bytes=settings.kv_offload_dir_size,
    )
