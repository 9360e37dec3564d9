"""Memory that is given back and had again under the same addresses, over a driver that counts."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch import updating
from nanoserve.adapters.pytorch.cuda import virtual_memory
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.sleeping import held_tensors
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.ports.errors import BadValueError, OutOfMemoryError
from nanoserve.ports.steering import KV_CACHE, WEIGHTS
from tests.unit.adapters.pytorch.fake_driver import GRANULARITY, OUT_OF_MEMORY, FakeDriver, FakeMemory
from tests.unit.adapters.pytorch.test_updating import logits, two, update

pytestmark = pytest.mark.usefixtures("plain_products")
WANTED = [((3, 5), torch.float32), ((0, 7), torch.int8), ((), torch.float64), ((1000,), torch.bfloat16)]


def filled(memory: FakeMemory) -> list[Tensor]:
    tensors = memory.take(WANTED)
    for seed, each in enumerate(tensors):
        each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(seed)))
    return tensors


def test_tensors_have_the_shapes_that_were_asked_for_and_storages_of_their_own() -> None:
    tensors = filled(FakeMemory(FakeDriver()))
    assert [(tuple(each.shape), each.dtype) for each in tensors] == WANTED
    whole = [each for each in tensors if each.numel()]
    assert all(each.data_ptr() % 512 == 0 and each.storage_offset() == 0 for each in whole)
    assert len({each.untyped_storage().data_ptr() for each in whole}) == len(whole)
    assert [each.untyped_storage().nbytes() for each in whole] == [60, 8, 2000]


def test_what_is_kept_comes_back_under_the_same_addresses_and_a_hundred_cycles_leave_nothing() -> None:
    driver = FakeDriver()
    memory = FakeMemory(driver)
    tensors = filled(memory)
    before, places = [each.clone() for each in tensors], [each.data_ptr() for each in tensors]
    left = driver.free
    for cycle in range(100):
        memory.release(keep=True)
        assert driver.free == 1 << 30
        assert not driver.mapped
        memory.restore()
        assert driver.free == left
        assert [each.data_ptr() for each in tensors] == places
        assert all(map(torch.equal, tensors, before))
        if cycle == 50:  # as an update does
            memory.forget()
            tensors[0].fill_(3)
            before[0].fill_(3)
    assert len(driver.handles) == len(driver.reserved) == 1


def test_the_copy_that_is_kept_is_pinned_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_memory, "PIN_FROM", 1)
    driver = FakeDriver()
    memory = FakeMemory(driver)
    tensors = filled(memory)
    before = [each.clone() for each in tensors]
    for _ in range(2):
        memory.release(keep=True)
        memory.restore()
        assert list(driver.pinned.values()) == [6 * 512]
    memory.forget()
    memory.forget()
    assert not driver.pinned
    driver.failing = {"cuMemHostRegister_v2": 1}  # which costs time alone
    memory.release(keep=True)
    memory.restore()
    assert all(map(torch.equal, tensors, before))


def test_nothing_is_unmapped_before_the_device_has_finished_and_what_is_not_kept_is_gone() -> None:
    driver = FakeDriver()
    memory = FakeMemory(driver)
    (tensor,) = memory.take([((8,), torch.float32)])
    tensor.fill_(1)
    driver.called.clear()
    memory.release(keep=False)
    assert driver.called == ["cuCtxSynchronize", "cuMemUnmap", "cuMemRelease"]
    memory.restore()
    memory.restore()  # is there
    assert driver.called[3:] == ["cuMemCreate", "cuMemMap", "cuMemSetAccess"]
    assert not torch.equal(tensor, torch.ones(8))


def test_memory_that_another_process_took_is_one_error_and_had_again_later() -> None:
    driver = FakeDriver()
    memory = FakeMemory(driver)
    tensors = filled(memory)
    before = [each.clone() for each in tensors]
    memory.release(keep=True)
    driver.free = 100
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="another process may have taken"):
            memory.restore()
    driver.free = 1 << 30
    for name in ("cuMemMap", "cuMemSetAccess"):
        driver.failing = {name: 1}
        with pytest.raises(RuntimeError, match=f"{name} failed with CUDA error 1"):
            memory.restore()
        assert driver.free == 1 << 30
        assert not driver.mapped
    driver.failing = {}
    memory.restore()
    assert all(map(torch.equal, tensors, before))


def test_it_ends_with_its_last_tensor_and_may_be_taken_anew_then() -> None:
    driver = FakeDriver()
    memory = FakeMemory(driver)
    tensors = filled(memory)
    del tensors
    again = filled(memory)
    assert len(driver.reserved) == len(driver.handles) == 1
    del memory
    gc.collect()
    assert driver.reserved
    del again
    gc.collect()
    assert not driver.reserved
    assert not driver.handles
    assert driver.free == 1 << 30


def test_a_model_that_cannot_be_given_memory_says_so() -> None:
    with pytest.raises(OutOfMemoryError, match="has no"):
        FakeMemory(FakeDriver(free=100)).take(WANTED)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_a_model_sleeps_and_is_the_same_in_the_same_place(tmp_path: Path, family: str, level: int) -> None:
    old, new = two(tmp_path, family)
    driver = FakeDriver()
    memories = {part: FakeMemory(driver) for part in (WEIGHTS, KV_CACHE)}
    form: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    model = build_model(old.spec, str(old.folder), **form, take=memories[WEIGHTS].take)
    loaded = new.build()
    kv = KVStore(model.spec, num_blocks=8, block_size=4, **form, take=memories[KV_CACHE].take)
    places = {path: tensor.data_ptr() for path, _, _, tensor in held_tensors(model)}
    weights = ModelWeights(model, str(old.folder), None, memories=memories)
    full = driver.free
    before = logits(model)
    assert torch.equal(before, logits(old.build()))
    for folder, wanted in ((None, before), (new.folder, logits(loaded))):
        if folder is not None:
            update(weights, folder)
        weights.sleep(level)
        assert driver.free == 1 << 30
        driver.failing = {"cuMemCreate": OUT_OF_MEMORY}
        for part in (WEIGHTS, KV_CACHE):
            with pytest.raises(BadValueError, match="the engine stays asleep"):
                weights.wake(part)
        assert driver.free == 1 << 30
        driver.failing = {}
        weights.wake(KV_CACHE)
        assert driver.free < 1 << 30
        weights.wake(WEIGHTS)
        weights.wake(WEIGHTS)  # is awake
        assert driver.free == full
        assert torch.equal(logits(model), wanted)
        assert places == {path: tensor.data_ptr() for path, _, _, tensor in held_tensors(model)}
    assert all(pool.untyped_storage().nbytes() for pools in kv.pools for pool in pools)


@pytest.mark.parametrize("taken", [False, True])
def test_new_weights_wait_in_spare_memory_which_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    old, new = two(tmp_path)
    driver, model, asked = FakeDriver(), old.build(), list[int]()

    def spare(_: torch.device, size: int) -> FakeMemory:
        asked.append(size)
        return FakeMemory(driver)

    monkeypatch.setattr(updating, "spare_memory", spare)
    driver.failing = {"cuMemCreate": OUT_OF_MEMORY} if taken else {}
    weights = ModelWeights(model, str(old.folder), None)
    weights.read(str(new.folder), anew=True, partial=False)
    assert asked[0] >= sum(each.nbytes for each in model.parameters())
    assert (driver.free == 1 << 30) is taken
    weights.complete()
    weights.write()
    assert driver.free == 1 << 30
    assert torch.equal(logits(model), logits(new.build()))


@pytest.mark.parametrize(("pieces", "times"), [(1, 3), (2, 2), (8, 1)])
def test_bare_memory_is_one_piece_behind_all_addresses_until_it_is_released(
    monkeypatch: pytest.MonkeyPatch, pieces: int, times: int
) -> None:
    """Drivers map a piece as a whole: the last one reaches beyond what is asked for."""
    piece = pieces * GRANULARITY
    monkeypatch.setattr(virtual_memory, "PIECE_BYTES", piece)
    driver = FakeDriver()
    memory = FakeMemory(driver, bare=True)
    (tensor,) = memory.take([((5 * GRANULARITY // 2,), torch.uint8)])
    assert (1 << 30) - driver.free == min(piece, 3 * GRANULARITY)
    assert sorted(driver.mapped) == [tensor.data_ptr() + place * piece for place in range(times)]
    assert len(set(driver.mapped.values())) == 1
    assert tensor[:GRANULARITY].eq(virtual_memory.FILLING).all()
    numbers = torch.full((32,), virtual_memory.FILLING, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        assert 0.001 < float(numbers.view(dtype).double().max()) < 2
    memory.release(keep=False)
    assert not driver.mapped
    assert driver.free == 1 << 30
    memory.restore()
    assert list(driver.mapped) == [tensor.data_ptr()]
    assert (1 << 30) - driver.free == 3 * GRANULARITY
    driver.failing = {"cuMemCreate": OUT_OF_MEMORY}
    memory.release(keep=False)
    with pytest.raises(OutOfMemoryError, match=f"no {3 * GRANULARITY} bytes free"):
        memory.restore()


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_model_that_was_built_bare_is_the_same_once_it_has_slept(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two(tmp_path, family)
    driver = FakeDriver()
    memories = {part: FakeMemory(driver, bare=True) for part in (WEIGHTS, KV_CACHE)}
    form: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    model = build_model(old.spec, str(old.folder), **form, take=memories[WEIGHTS].take, read=False)
    kv = KVStore(model.spec, num_blocks=8, block_size=4, **form, take=memories[KV_CACHE].take)
    weights = ModelWeights(model, str(old.folder), None, memories=memories)
    loaded = logits(old.build())
    assert not torch.equal(logits(model), loaded)
    monkeypatch.setattr(virtual_memory, "PIN_FROM", 4096)
    weights.sleep(1)
    assert driver.free == 1 << 30
    assert driver.pinned
    driver.failing = {"cuMemCreate": OUT_OF_MEMORY}
    with pytest.raises(BadValueError, match="the engine stays asleep"):
        weights.wake(WEIGHTS)
    driver.failing = {}
    shutil.move(old.folder, tmp_path / "away")  # they were read before
    for part in (WEIGHTS, KV_CACHE):
        weights.wake(part)
    assert torch.equal(logits(model), loaded)
    assert not driver.pinned
    shutil.move(tmp_path / "away", old.folder)
    for level in (1, 2):
        weights.sleep(level)
        weights.wake(WEIGHTS)
        assert torch.equal(logits(model), loaded)
        weights.wake(KV_CACHE)
    update(weights, new.folder)
    assert torch.equal(logits(model), logits(new.build()))
    assert kv.pools
