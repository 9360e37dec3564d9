"""The bytes of KV events, read by structs with the fields and the order that vLLM's consumers have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nanoserve.adapters.zmq_events.encoding import EventEncoder
from nanoserve.adapters.zmq_events.subscriber import decode_batch
from nanoserve.ports.kv import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from nanoserve.ports.model_spec import CacheGroup, Window

GROUPS = (CacheGroup(layers=(0,)), CacheGroup(layers=(1,), kind=Window(5)))
FIELDS: dict[str, list[Any]] = {
    "BlockStored": [
        ("block_hashes", list[int]),
        ("parent_block_hash", int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", int | None),
        ("medium", str | None),
        ("lora_name", str | None),
        ("extra_keys", list[Any] | None, None),
        ("group_idx", int | None, None),
        ("kv_cache_spec_kind", str | None, None),
        ("kv_cache_spec_sliding_window", int | None, None),
    ],
    "BlockRemoved": [("block_hashes", list[int]), ("medium", str | None), ("group_idx", int | None, None)],
    "AllBlocksCleared": [],
}
EVENTS: list[KVEvent] = [
    BlockStored(0, None, (-1, bytes(24) + bytes(range(8))), tuple(range(8))),
    BlockStored(1, 7, (2**63,), (1, 2, 3, 2**31 - 1)),
    BlockRemoved(1, (7, 8)),
    AllBlocksCleared(),
]


def decoded(events: list[KVEvent], encoder: EventEncoder, *, as_arrays: bool) -> list[Any]:
    kinds = [
        msgspec.defstruct(name, fields, tag=True, array_like=as_arrays, forbid_unknown_fields=True)
        for name, fields in FIELDS.items()
    ]
    batch = encoder.encode(events)
    assert batch is not None
    kind: Any = tuple[float, list[kinds[0] | kinds[1] | kinds[2]], int]  # type: ignore[valid-type]
    _, found, rank = msgspec.msgpack.decode(batch, type=kind)
    assert rank == 0
    return [(type(each).__name__, msgspec.structs.asdict(each)) for each in found]


def test_what_is_in_host_memory_has_a_medium_of_its_own_in_both_directions() -> None:
    events: list[KVEvent] = [
        BlockStored(0, None, (1,), (1, 2, 3, 4), "host"),
        BlockStored(0, 1, (2,), (), "host"),
        BlockRemoved(0, (1, 2)),
        BlockRemoved(0, (2, 1), "host"),
    ]
    batch = EventEncoder(GROUPS, 4, as_arrays=True).encode(events)
    assert batch is not None
    _, (stored, removed, lost), _ = msgspec.msgpack.decode(batch)
    assert [stored[6], removed[2], lost[2]] == ["CPU", "GPU", "CPU"]
    assert decode_batch(batch) == [events[0], events[2], BlockRemoved(0, (1,), "host")]


@pytest.mark.parametrize("as_arrays", [False, True])
def test_events_are_what_consumers_expect_in_either_form(as_arrays: bool) -> None:
    encoder = EventEncoder(GROUPS, 4, as_arrays=as_arrays)
    common = {"block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": None}
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": None}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 5}
    names = {"block_hashes": [2**64 - 1, 0x0001020304050607], "parent_block_hash": None}
    assert decoded(EVENTS, encoder, as_arrays=as_arrays) == [
        ("BlockStored", names | {"token_ids": list(range(8))} | common | full),
        (
            "BlockStored",
            {"block_hashes": [2**63], "parent_block_hash": 7, "token_ids": [1, 2, 3, 2**31 - 1]}
            | common
            | window,
        ),
        ("BlockRemoved", {"block_hashes": [7, 8], "medium": "GPU", "group_idx": 1}),
        ("AllBlocksCleared", {}),
    ]


def test_maps_begin_with_their_type_and_leave_out_what_is_not_there() -> None:
    batch = EventEncoder(GROUPS, 4, as_arrays=False).encode(EVENTS)
    assert batch is not None
    _, (stored, *_), _ = msgspec.msgpack.decode(batch)
    assert list(stored) == [
        *(
            "type",
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
        ),
        *("group_idx", "kv_cache_spec_kind"),
    ]


def test_of_salted_prompts_nothing_is_said() -> None:
    encoder = EventEncoder(GROUPS, 4, as_arrays=False)
    assert encoder.encode([BlockStored(0, None, (1, 2), ())]) is None
    assert encoder.encode([BlockRemoved(0, (2,))]) is None
    assert decoded([BlockRemoved(0, (1, 9)), BlockRemoved(1, (1,))], encoder, as_arrays=False) == [
        ("BlockRemoved", {"block_hashes": [9], "medium": "GPU", "group_idx": 0}),
        ("BlockRemoved", {"block_hashes": [1], "medium": "GPU", "group_idx": 1}),
    ]
