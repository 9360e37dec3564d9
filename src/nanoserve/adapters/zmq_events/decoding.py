"""Events from the bytes of a batch, in either of vLLM's forms: maps with a `type`, or arrays that begin with it.

What says nothing of whether a prompt of this model finds its prefix is left out: windows and states, tiers behind host memory, adapters,
and prompts with keys of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from nanoserve.ports.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_KINDS: Final = {None, "full_attention", "mla_attention"}
_TIERS: Final[Mapping[str | None, Tier]] = {None: "device", "GPU": "device", "CPU": "host"}


class _Stored(msgspec.Struct):
    """The fields of a `BlockStored` that are read."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]


class _Removed(msgspec.Struct):
    """The fields of a `BlockRemoved` that are read."""

    block_hashes: tuple[BlockHash, ...]


def decode_batch(batch: bytes) -> list[KVEvent]:
    """The events that count; those of a kind that is not known are left out.

    Raises `msgspec.DecodeError`, `LookupError`, `RecursionError`, `TypeError` or `ValueError` where it is no batch.
    """
    _, events, *_ = msgspec.msgpack.decode(batch)
    return list(_events(map(_named, events)))


def _named(event: Any) -> Mapping[str, Any]:
    if isinstance(event, Mapping):
        return event
    kind, *values = event
    return {"type": kind, **dict(zip(_FIELDS.get(kind, ()), values, strict=False))}


def _events(events: Iterator[Mapping[str, Any]]) -> Iterator[KVEvent]:
    for event in events:
        tier = _TIERS.get(event.get("medium"))
        if tier is None:
            continue
        group = msgspec.convert(event.get("group_idx"), int | None) or 0
        if event["type"] == "AllBlocksCleared":
            yield AllBlocksCleared()
        elif event["type"] == "BlockRemoved":
            yield BlockRemoved(group, msgspec.convert(event, _Removed).block_hashes, tier)
        elif event["type"] == "BlockStored" and _is_plain(event):
            stored = msgspec.convert(event, _Stored)
            names = stored.parent_block_hash, stored.block_hashes
            yield BlockStored(group, *names, stored.token_ids, tier)


def _is_plain(event: Mapping[str, Any]) -> bool:
    """True if every prompt that begins with these tokens finds these blocks."""
    is_adapted = event.get("lora_id") is not None or event.get("lora_name") is not None
    has_keys = any(event.get("extra_keys") or ())
    return not is_adapted and not has_keys and event.get("kv_cache_spec_kind") in _KINDS
