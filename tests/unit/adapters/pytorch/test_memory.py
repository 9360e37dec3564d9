"""The KV pool's size from memory, and the one error when it would be too small."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.adapters.pytorch import memory
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.memory import MemoryBudget, PoolRequest, plan_memory
from nanoserve.domain.kv.kinds import pool_needs
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import OutOfMemoryError
from nanoserve.ports.model_spec import CacheGroup, CacheKind, Full, ModelSpec, Recurrent, Window
from nanoserve.ports.step import BlockCopy
from tests.tiny_spec import TINY_LATENT, tiny_spec

SIZES: dict[str, Any] = {"vocab_size": 1_000, "max_position": 4_096}
SPEC = tiny_spec(3, **SIZES)
PER_TOKEN = 2 * 3 * 2 * 16 * 2
SAMPLER = 4 * 1_000 * 5
MIB = 2**20


def planned(
    *, spec: ModelSpec = SPEC, num_blocks: int | None = None, memory: float | None = None, **options: Any
) -> MemoryBudget:
    settings = {"block_size": 16, "max_model_len": 1_024, "max_num_seqs": 4, "max_num_batched_tokens": 2_048}
    numbers = settings | {name: options.pop(name) for name in settings if name in options}
    lengths = {name: number for name, number in numbers.items() if name != "max_num_seqs"}
    request = PoolRequest(
        needs=pool_needs(spec.cache_groups, **lengths), num_blocks=num_blocks, memory=memory
    )
    sizes = EngineSizes(vocab_size=spec.vocab_size, **numbers)
    return plan_memory(spec, sizes, request, dtype=torch.bfloat16, **{"available": MIB, **options})


def test_a_fraction_of_what_is_free_less_the_samplers_share() -> None:
    budget = planned(memory=0.5, weights=7)
    (num_blocks,) = budget.num_blocks
    assert num_blocks == (MIB // 2 - SAMPLER) // (16 * PER_TOKEN) - 1
    assert budget == MemoryBudget(
        weights=7,
        available=MIB,
        sampler=SAMPLER,
        kv=(num_blocks + 1) * 16 * PER_TOKEN,
        num_blocks=(num_blocks,),
        max_tokens=num_blocks * 16,
    )


def test_a_fraction_never_takes_more_than_all_rows_could_fill() -> None:
    assert planned(memory=0.9, max_model_len=100).num_blocks == (4 * 7,)


def test_unasked_a_pool_stops_at_the_usual_bytes_or_at_one_sequence() -> None:
    page, full = 16 * PER_TOKEN, 64
    assert planned(usual_bytes=70 * page).num_blocks == (70 - 1,)
    assert planned(usual_bytes=page).num_blocks == (full,), "one sequence fits in any case"
    roomy = planned(memory=0.8).num_blocks
    assert planned().num_blocks == roomy == planned(memory=0.8, usual_bytes=page).num_blocks
    assert planned(usual_bytes=2 * MIB).num_blocks == roomy, "the fraction holds as well"


@pytest.mark.parametrize("fraction", [None, 0.5])
@pytest.mark.parametrize("gib", [0.3, 1])
def test_what_decoding_rows_keep_beside_a_pool_is_left_free(gib: float, fraction: float | None) -> None:
    available = int(gib * 1024) * MIB
    how: dict[str, Any] = {"available": available, "max_num_seqs": 4096, "memory": fraction}
    room = int(available * (fraction or 0.8))
    assert room - 16 * PER_TOKEN < planned(**how).kv + 4096 * 5_000 <= room
    kept = planned(**how, keeps_rows=True)
    both = kept.kv + max(kept.kv // 4, 64 * MIB) + 4096 * 5_000
    assert room - 2 * 16 * PER_TOKEN < both <= room
    windows = planned(**how, spec=tiny_spec(3, **SIZES, windows=(100,) * 3), keeps_rows=True)
    assert windows == planned(**how, spec=tiny_spec(3, **SIZES, windows=(100,) * 3))


def test_nothing_is_left_free_for_kept_rows_where_one_sequence_would_not_fit_then() -> None:
    page = 16 * PER_TOKEN
    assert planned(memory=0.8, keeps_rows=True).num_blocks == (64,)
    with pytest.raises(OutOfMemoryError):
        planned(memory=0.1, keeps_rows=True)
    assert planned(memory=100 * page, keeps_rows=True).num_blocks == (99,)


def test_explicit_bytes_and_blocks_are_taken_as_they_are() -> None:
    assert planned(memory=MIB - 7).num_blocks == ((MIB - 7) // (16 * PER_TOKEN) - 1,)
    assert planned(num_blocks=150).num_blocks == (150,)


@pytest.mark.parametrize("spec", [SPEC, SPEC.keeping("fp8")], ids=["plain", "8-bits"])
def test_the_store_takes_what_was_planned(spec: ModelSpec) -> None:
    budget = planned(spec=spec, memory=MIB)
    per_token = PER_TOKEN // (1 if spec is SPEC else 2)
    assert budget.num_blocks == (MIB // (16 * per_token) - 1,)
    store = KVStore(
        spec, num_blocks=budget.num_blocks, block_size=16, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert sum(each.nbytes for each in itertools.chain(*store.layers)) == budget.kv <= MIB


GIB = 2**30


def gemma(windows: tuple[int | None, ...]) -> ModelSpec:
    return tiny_spec(62, heads=(32, 16, 128), vocab_size=1_000, max_position=131_072, windows=windows)


GEMMA = gemma(((1_024,) * 5 + (None,)) * 10 + (1_024,) * 2)


LARGE: dict[str, Any] = {"available": 100 * GIB, "max_model_len": 8_192}


def test_a_windows_pool_holds_windows_and_not_whole_texts() -> None:
    """As Gemma 3 27B: 52 layers of 62 see 1,024 tokens. Equal pools would take 3.8 times what is read at 8k tokens."""
    options = {**LARGE, "spec": GEMMA, "max_num_seqs": 64}
    full, windowed = 10 * 8_192, 52 * 8_192  # bytes of a token
    equal = 64 * 8_192 * (full + windowed)
    read = 64 * (8_192 * full + 1_024 * windowed)
    assert equal / read == pytest.approx(3.76, abs=0.01)
    with_all_rows = planned(**options, memory=100 * GIB)
    wide, narrow = with_all_rows.num_blocks[1], with_all_rows.num_blocks[0]
    assert narrow == 64 * (65 + 32) + 2_048 // 16 + 1
    assert wide > 64 * 512
    needed = 16 * (64 * 512 * full + narrow * windowed)
    assert read < needed < 1.25 * read
    assert planned(**options, memory=0.99).num_blocks == (narrow, 64 * 512)


@pytest.mark.parametrize("gib", [2, 4, 20, 60])
def test_what_windows_leave_goes_to_full_attention(gib: int) -> None:
    options = {**LARGE, "spec": GEMMA, "max_num_seqs": 256}
    budget = planned(**options, memory=gib * GIB)
    narrow, wide = budget.num_blocks
    equal = gib * GIB // (62 * 8_192 * 16)
    assert wide >= max(512, 2 * equal)
    assert narrow >= 65 + 2_048 // 16
    assert budget.kv <= gib * GIB < budget.kv + 2 * 62 * 8_192 * 16


def test_a_number_of_blocks_is_that_of_every_group_that_can_use_it() -> None:
    options = {**LARGE, "spec": GEMMA, "max_num_seqs": 4}
    assert planned(**options, num_blocks=2_000).num_blocks == (4 * 97 + 129, 2_000)
    with pytest.raises(OutOfMemoryError, match="only 100 fit"):
        planned(**options, num_blocks=100)


def test_alike_windows_share_all_there_is_as_full_attention_does() -> None:
    alone = tiny_spec(3, windows=(256,) * 3, **SIZES)
    assert planned(spec=alone, memory=0.9).num_blocks == planned(memory=0.9).num_blocks
    two = tiny_spec(3, windows=(256, 64, 64), **SIZES)
    assert planned(spec=two, memory=0.9).num_blocks == planned(memory=0.9).num_blocks * 2


@pytest.mark.parametrize("window", [3_000, 4_096, 100_000])
def test_windows_as_long_as_texts_get_as_much_as_full_attention(window: int) -> None:
    spec = gemma((window, None) * 31)
    narrow, wide = planned(**LARGE, spec=spec, max_num_seqs=256, memory=20 * GIB).num_blocks
    assert narrow == wide == 20 * GIB // (62 * 8_192 * 16) - 1


def test_states_are_counted_by_rows_and_take_no_more_than_they_can_use() -> None:
    groups = (
        CacheGroup(layers=(0,), elements=64),
        CacheGroup(layers=(1, 2), kind=Recurrent(), elements=1_024),
    )
    lengths = {"block_size": 16, "max_model_len": 1_024}
    needs = pool_needs(groups, max_num_batched_tokens=2_048, **lengths)
    sizes = [group.page_bytes(16, 2) for group in groups]
    assert sizes == [2_048, 8_192]
    full, states = memory.share_out(MIB, sizes, needs, 4)
    assert states == 2 * 4 + 2
    assert full == (MIB - 2_048 - 8_192 - 10 * 8_192) // 2_048
    assert memory.share_out(300_000, sizes, needs, 64)[1] == 2 * 1 + 2


KINDS: st.SearchStrategy[CacheKind] = st.one_of(
    st.just(Full()), st.builds(Window, st.integers(1, 40_000)), st.just(Recurrent())
)
GROUPS = st.lists(
    st.builds(CacheGroup, layers=st.just((0,)), kind=KINDS, elements=st.integers(1, 4_096)),
    min_size=1,
    max_size=4,
)


@given(groups=GROUPS, length=st.integers(16, 131_072), rows=st.integers(1, 256), slack=st.floats(0, 50))
def test_pools_stay_within_memory_and_hold_one_sequence_wherever_that_fits(
    groups: list[CacheGroup], length: int, rows: int, slack: float
) -> None:
    needs = pool_needs(groups, block_size=16, max_model_len=length, max_num_batched_tokens=2_048)
    pages = [group.page_bytes(16, 2) for group in groups]
    wanted = [
        need.least if need.usual is None else max(each.least for each in needs if each.usual)
        for need in needs
    ]
    least = sum((count + 1) * size for count, size in zip(wanted, pages, strict=True))
    given_bytes = int(least * (1 + slack))
    counts = memory.share_out(given_bytes, pages, needs, rows)
    assert sum((count + 1) * size for count, size in zip(counts, pages, strict=True)) <= given_bytes
    assert all(count >= need.least for count, need in zip(counts, needs, strict=True))


def test_more_than_is_free_is_refused_before_it_is_taken() -> None:
    with pytest.raises(OutOfMemoryError, match=r"2\.0 MiB asked for and 1\.0 MiB free; lower kv_memory"):
        planned(memory=2 * MIB)
    with pytest.raises(OutOfMemoryError, match="free; lower"):
        planned(num_blocks=10**8)


@pytest.mark.parametrize("blocks", [64, 63])
def test_one_maximal_request_must_fit(blocks: int) -> None:
    if blocks == 64:
        assert planned(num_blocks=blocks).max_tokens == 1_024
        return
    with pytest.raises(OutOfMemoryError, match=r"max_model_len=1024 .* 64 blocks .* only 63 .* to 1008"):
        planned(num_blocks=blocks)


def test_no_room_at_all_is_the_same_error() -> None:
    with pytest.raises(OutOfMemoryError, match="only 0 fit"):
        planned(memory=0.001)


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    cpu = torch.device("cpu")
    assert memory.available_memory(cpu) > 1000
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory(cpu) > 1000
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.available_memory(cpu) == 700
    (tmp_path / "memory.max").write_text("200\n")
    assert memory.available_memory(cpu) == 0


@pytest.mark.parametrize(
    "spec", [tiny_spec(4, windows=(8, None, 8, 8)), TINY_LATENT], ids=["windows", "latents"]
)
def test_a_block_is_one_run_of_memory_over_all_layers_of_its_group(spec: ModelSpec) -> None:
    store = KVStore(spec, num_blocks=4, block_size=16, dtype=torch.float32, device=torch.device("cpu"))
    for group, (pool,) in zip(spec.cache_groups, store.pools, strict=True):
        pool.fill_(-1)
        for layer in group.layers:
            for tensor in store.layers[layer]:
                tensor[3] = layer
        assert pool[0, 3].is_contiguous()
        assert pool[0, 3].nbytes == group.page_bytes(16, 4)
        assert set(pool[0, 3].flatten().tolist()) == set(group.layers)
        assert bool((pool[0, [0, 1, 2, 4]] == -1).all())


@pytest.mark.parametrize(
    "spec", [tiny_spec(4, windows=(8, None, 8, 8)), TINY_LATENT], ids=["windows", "latents"]
)
def test_or_each_layer_has_its_blocks_together(spec: ModelSpec) -> None:
    sizes: dict[str, Any] = {"num_blocks": 4, "block_size": 16, "dtype": torch.float32}
    store = KVStore(spec, **sizes, device=torch.device("cpu"), whole_blocks=False)
    for group, (pool,) in zip(spec.cache_groups, store.pools, strict=True):
        assert pool.nbytes == 5 * group.page_bytes(16, 4)
        for layer in group.layers:
            assert {each.stride(0) for each in store.layers[layer]} == {16 * group.elements}
            for tensor in store.layers[layer]:
                tensor.copy_(torch.arange(5).view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    store.copy([BlockCopy(group, 1, 3) for group in range(len(spec.cache_groups))])
    for tensor in itertools.chain(*store.layers):
        assert [set(each.flatten().tolist()) for each in tensor] == [{0}, {1}, {2}, {1}, {4}]


def test_latents_are_kept_once_per_layer_and_copied() -> None:
    (group,) = TINY_LATENT.cache_groups
    store = KVStore(TINY_LATENT, num_blocks=4, block_size=16, dtype=torch.float32, device=torch.device("cpu"))
    assert [tuple(each.shape) for each in itertools.chain(*store.layers)] == [(5, 16, 26)] * 2
    assert sum(each.nbytes for each in itertools.chain(*store.layers)) == 5 * group.page_bytes(16, 4)
    for tensor in itertools.chain(*store.layers):
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor))
    before = [tensor.clone() for tensor in itertools.chain(*store.layers)]
    store.copy([BlockCopy(group=0, source=1, target=3), BlockCopy(group=0, source=4, target=2)])
    for tensor, old in zip(itertools.chain(*store.layers), before, strict=True):
        assert torch.equal(tensor, old[[0, 1, 4, 1, 4]])
