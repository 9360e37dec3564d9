"""Copies between the cache and slots of host memory: what is reported, when, and which bytes arrive."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import torch

from nanoserve.adapters.pytorch import offload
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.offload import HostSlots, Offload
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.step import SlotCopy, StepPlan
from tests.tiny_spec import TINY, TINY_LATENT, tiny_spec

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


@pytest.mark.parametrize("spec", [tiny_spec(3, heads=(4, 2, 16)), TINY_LATENT])
def test_what_layers_keep_of_a_block_is_the_same_after_its_way_over_the_host(spec: ModelSpec) -> None:
    store = KVStore(spec, num_blocks=BLOCKS - 1, block_size=4, dtype=torch.float32, device=DEVICE)
    kept = [each for layer in store.layers for each in layer]
    for number, each in enumerate(kept):
        assert each.stride(0) > each[0].numel()  # a layer's blocks are apart, with other layers' between them
        elements = torch.arange(each.numel(), dtype=torch.float32, device=DEVICE)
        each.copy_((elements + 1000 * number).view(each.shape))
    wanted = [each.clone() for each in kept]
    copies = Offload(store, count=3)
    copies.start(StepPlan(step=1, stores=(SlotCopy(2, 0), SlotCopy(5, 2))))
    copies.finished(1, wait=True)
    for each in kept:
        each[1:].fill_(-1)
    copies.start(StepPlan(step=2, loads=(SlotCopy(4, 0), SlotCopy(2, 2))))
    copies.finished(2, wait=True)
    for found, before in zip(kept, wanted, strict=True):
        assert torch.equal(found[[0, 4, 2]], before[[0, 2, 5]])
        assert bool((found[[1, 3, 5]] == -1).all())


@pytest.mark.parametrize("chunks_locked", [0, 1, 3])
def test_slots_of_several_chunks_are_apart_however_many_can_be_locked(
    monkeypatch: pytest.MonkeyPatch, chunks_locked: int
) -> None:
    monkeypatch.setattr(offload, "CHUNK_BYTES", 100)
    allocate, locked = torch.empty, list[Any]()

    def empty(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory and len(locked) == chunks_locked:
            raise OSError("locking is not allowed")
        made = allocate(*shape, **options)
        locked.extend([made] if pin_memory else [])
        return made

    monkeypatch.setattr(torch, "empty", empty)
    with structlog.testing.capture_logs() as said:
        slots = HostSlots(7, 32, pinned=True)
        for slot in reversed(range(7)):
            slots.view(slot)[:] = bytes([slot]) * 32
    assert [set(slots.view(slot)) for slot in range(7)] == [{slot} for slot in range(7)]
    assert [each.unique().tolist() for each in locked] == [[0, 1, 2], [3, 4, 5], [6]][:chunks_locked]
    assert [each["locked_bytes"] for each in said] == ([] if chunks_locked == 3 else [chunks_locked * 96])


def test_memory_that_the_machine_does_not_grant_is_refused_at_the_start() -> None:
    with pytest.raises(BadValueError, match=f"kv_offload_memory: .* {2**60} bytes"):
        HostSlots(2**40, 2**20, pinned=False)
