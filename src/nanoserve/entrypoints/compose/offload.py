"""Builds the tiers beside the device's KV cache: slots of host memory, and a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import structlog

from nanoserve.adapters.kv_directory.directory import FileDirectory
from nanoserve.adapters.pytorch.devices import DEVICES, DTYPES, arithmetic
from nanoserve.adapters.pytorch.memory import available_memory
from nanoserve.adapters.pytorch.weights.identity import weights_digest
from nanoserve.domain.kv.key_inputs import fingerprint
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.process import installed_release
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import HostSlots, KVEventPublisher
from nanoserve.ports.model_spec import ModelSpec


def count_slots(settings: EngineSettings, found: Survey) -> int:
    """Slots of host memory, each for one block; 0 if none is asked for.

    Raises `BadValueError` if blocks cannot be offloaded, or there is no room for one.
    """
    memory = settings.kv_offload_memory
    if settings.kv_role != "none" and settings.kv_offload_dir is None:
        raise BadValueError("kv_role", "needs --kv-offload-dir, through which blocks are handed over")
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
    if settings.tensor_parallel_size > 1 or settings.draft or settings.speculate == "mtp":
        message = "cannot be combined with tensor_parallel_size or draft yet, nor with speculate mtp"
        raise BadValueError(name, message)
    if not settings.enable_prefix_caching:
        raise BadValueError(name, "keeps prefixes, and prefix caching is off; leave one of them out")
    kinds = [group.kind.name for group in found.spec.cache_groups]
    if len(kinds) > 1 or kinds[0] not in {"full", "latent"}:
        message = f"cannot carry what {found.spec.architecture} keeps ({', '.join(kinds)}): windows and states; leave it out"
        raise BadValueError(name, message)


def open_directory(
    settings: EngineSettings, found: Survey, runner: object, num_slots: int, threads: int
) -> FileDirectory | None:
    """The directory behind a runner's slots; None if none is asked for. Raises `BadValueError` if it cannot be used."""
    slots: HostSlots | None = getattr(runner, "host", None)
    if slots is None or settings.kv_offload_dir is None:
        return None
    return FileDirectory(
        Path(settings.kv_offload_dir).expanduser(),
        fingerprint(key_facts(settings, found, threads=threads, block_bytes=slots.slot_bytes)),
        slots,
        num_slots=num_slots,
        max_bytes=settings.kv_offload_dir_size,
        looks=settings.kv_role != "none",
    )


def key_facts(settings: EngineSettings, found: Survey, *, threads: int, block_bytes: int) -> dict[str, Any]:
    """All that could change a key in a block of the engine, whether it does or not, as it was decided; see `domain/kv/key_inputs.py`."""
    return attrs.asdict(settings) | {
        "spec": found.spec,
        "weights": None if found.folder is None else weights_digest(found.folder),
        "release": installed_release(),
        "arithmetic": arithmetic(found.device),
        "device": found.device,
        "dtype": found.dtype,
        "threads": threads if found.device == "cpu" and settings.deterministic else None,
        "block_bytes": block_bytes,
    }


def open_kv_events(settings: EngineSettings, spec: ModelSpec) -> KVEventPublisher | None:
    """None if none are asked for. Called before anything slow, because ports are often taken. Raises `BadValueError`."""
    if settings.kv_events_port is None:
        return None
    if not settings.enable_prefix_caching:
        raise BadValueError("kv_events_port", "there are no KV events if prefix caching is off")
    check_kv_events("kv_events_port")
    from nanoserve.adapters.zmq_events import encoding, publisher  # noqa: PLC0415 - an extra

    as_arrays = settings.kv_events_format == "array"
    encoder = encoding.EventEncoder(spec.cache_groups, settings.block_size, as_arrays=as_arrays)
    place = publisher.Place(
        host=settings.kv_events_host,
        port=settings.kv_events_port,
        replay_port=settings.kv_events_replay_port,
        topic=settings.kv_events_topic or "",
    )
    made = publisher.ZmqKVEvents(place, encoder)
    made.start()
    structlog.get_logger().info("KV events", at=made.endpoint, replay=made.replay_endpoint)
    return made


def check_kv_events(setting: str) -> None:
    """Raises `BadValueError` in the name of a setting where KV events cannot be written or read."""
    try:
        import zmq  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise BadValueError(setting, "KV events need pyzmq: pip install 'nanoserve[events]'") from None
