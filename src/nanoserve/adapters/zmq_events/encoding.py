"""The bytes of KV events: vLLM's, as maps with a `type` (since June 2026) or as arrays (before).

A batch is an array in both: the time, the events, and the rank among data-parallel engines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from nanoserve.ports.kv import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier
from nanoserve.ports.model_spec import CacheGroup, Full, Latent, Recurrent, Window

_MEDIA: Final[Mapping[Tier, str]] = {"device": "GPU", "host": "CPU"}
"""Consumers' names for tiers of memory, on whichever device the first one is."""
_RANK: Final = 0
_KINDS: Final = {
    Full: "full_attention",
    Latent: "mla_attention",
    Window: "sliding_window",
    Recurrent: "mamba",
}
_OPTIONAL: Final = {"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
"""Left out of a map where there is nothing to say."""


class EventEncoder:
    """Encodes the events of one engine, in order.

    What salted prompts have left in the cache is left out: its tokens are secret, and without them it is of no use.
    """

    def __init__(self, groups: Sequence[CacheGroup], block_size: int, *, as_arrays: bool) -> None:
        self._kinds = [(_KINDS[type(each.kind)], each.window) for each in groups]
        self._block_size = block_size
        self._as_arrays = as_arrays
        self._secret: set[tuple[Tier, int, BlockHash]] = set()
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, events: Iterable[KVEvent]) -> bytes | None:
        """A batch; None if nothing of it may be said."""
        said = [each for each in map(self._fields, events) if each is not None]
        if not said:
            return None
        return self._encoder.encode([time.time(), [self._shaped(each) for each in said], _RANK])

    def _shaped(self, fields: dict[str, Any]) -> Any:
        if self._as_arrays:
            return list(fields.values())
        return {name: value for name, value in fields.items() if value is not None or name not in _OPTIONAL}

    def _fields(self, event: KVEvent) -> dict[str, Any] | None:
        match event:
            case BlockStored():
                return self._stored(event)
            case BlockRemoved():
                return self._removed(event)
            case AllBlocksCleared():
                return {"type": "AllBlocksCleared"}

    def _stored(self, event: BlockStored) -> dict[str, Any] | None:
        if not event.token_ids:
            self._secret.update((event.tier, event.group, each) for each in event.block_hashes)
            return None
        kind, window = self._kinds[event.group]
        return {
            "type": "BlockStored",
            "block_hashes": [_number(each) for each in event.block_hashes],
            "parent_block_hash": None if event.parent is None else _number(event.parent),
            "token_ids": event.token_ids,
            "block_size": self._block_size,
            "lora_id": None,
            "medium": _MEDIA[event.tier],
            "lora_name": None,
            "extra_keys": None,
            "group_idx": event.group,
            "kv_cache_spec_kind": kind,
            "kv_cache_spec_sliding_window": window,
        }

    def _removed(self, event: BlockRemoved) -> dict[str, Any] | None:
        names = {(event.tier, event.group, each): each for each in event.block_hashes}
        hidden = names.keys() & self._secret
        self._secret -= hidden
        said = [each for key, each in names.items() if key not in hidden]
        if not said:
            return None
        return {
            "type": "BlockRemoved",
            "block_hashes": [_number(each) for each in said],
            "medium": _MEDIA[event.tier],
            "group_idx": event.group,
        }


def _number(name: BlockHash) -> int:
    """64 bits without a sign, which every consumer reads; of a digest the last eight bytes, as vLLM does it."""
    return name & (2**64 - 1) if isinstance(name, int) else int.from_bytes(name[-8:])
