"""Copies between the cache and slots of host memory: what is reported, when, and which bytes arrive."""

from __future__ import annotations

import pytest
import torch

from nanoserve.adapters.pytorch.cuda import offload
from nanoserve.adapters.pytorch.cuda.offload import Offload, PinnedSlots
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.step import SlotCopy, StepPlan
from tests.tiny_spec import TINY

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS = 6


def make_store() -> KVStore:
    store = KVStore(TINY, num_blocks=BLOCKS - 1, block_size=4, dtype=torch.float32, device=DEVICE)
    for block, content in enumerate(store.block_bytes()):
        content.fill_(block)
    return store


def test_blocks_go_out_and_come_back_elsewhere() -> None:
    store = make_store()
    copies = Offload(store, count=3)
    copies.start(StepPlan(step=1, stores=(SlotCopy(2, 0), SlotCopy(5, 2))))
    assert copies.finished(1, wait=True) == (1,)
    assert [set(copies.slots.view(slot)) for slot in (0, 2)] == [{2}, {5}]
    copies.slots.view(2)[:] = bytes([9]) * copies.slots.slot_bytes
    copies.start(StepPlan(step=2, loads=(SlotCopy(4, 2), SlotCopy(1, 0))))
    assert copies.finished(2, wait=True) == (2,)
    assert [each.unique().tolist() for each in store.block_bytes()] == [[0], [2], [2], [3], [9], [5]]


def test_copies_are_reported_once_with_their_own_step_at_the_earliest() -> None:
    copies = Offload(make_store(), count=3)
    copies.start(StepPlan(step=1, stores=(SlotCopy(1, 1),)))
    copies.start(StepPlan(step=2))
    copies.start(StepPlan(step=3, stores=(SlotCopy(2, 2),), loads=(SlotCopy(3, 1),)))
    assert copies.finished(2, wait=True) == (1,)
    assert copies.finished(2, wait=True) == ()
    assert copies.finished(3, wait=True) == (3,)


class NotYet:
    """What tells of a copy that takes its time."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True


def test_only_a_step_that_computes_nothing_waits_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_queue", lambda _stream, copies: [NotYet()] if copies else [])
    copies = Offload(make_store(), count=3)
    copies.start(StepPlan(step=1, stores=(SlotCopy(1, 1),)))
    assert copies.finished(1, wait=False) == ()
    assert copies.finished(2, wait=True) == (1,)


def test_a_new_beginning_lets_earlier_copies_end_and_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[NotYet] = []

    def queue(_stream: object, copies: object) -> list[NotYet]:
        queued.extend([NotYet()] if copies else [])
        return queued[-1:] if copies else []

    monkeypatch.setattr(offload, "_queue", queue)
    copies = Offload(make_store(), count=3)
    copies.start(StepPlan(step=1, stores=(SlotCopy(1, 1),)))
    copies.start(StepPlan(step=2, starts_anew=True, stores=(SlotCopy(2, 1),)))
    assert [each.is_done for each in queued] == [True, False]
    assert copies.finished(2, wait=True) == (2,)


def test_slots_of_several_chunks_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "CHUNK_BYTES", 100)
    slots = PinnedSlots(7, 32, pinned=False)
    for slot in range(7):
        slots.view(slot)[:] = bytes([slot]) * 32
    assert [set(slots.view(slot)) for slot in range(7)] == [{slot} for slot in range(7)]
