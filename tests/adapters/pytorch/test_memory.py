"""The KV pool's size from memory, and the one error when it would be too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch import memory
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.memory import MemoryBudget, plan_memory
from nanoserve.ports.errors import OutOfMemoryError
from nanoserve.ports.model_spec import ModelSpec, RopeSpec

SPEC = ModelSpec(
    architecture="llama", num_layers=3, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16,
    vocab_size=1_000, max_position=4_096, norm_eps=1e-5, rope=RopeSpec(), tied_embeddings=True,
)  # fmt: skip
PER_TOKEN = 2 * 3 * 2 * 16 * 2
SAMPLER = 4 * 1_000 * 5
MIB = 2**20


def planned(**options: Any) -> MemoryBudget:
    settings: dict[str, Any] = {
        "block_size": 16,
        "dtype": torch.bfloat16,
        "max_model_len": 1_024,
        "max_num_seqs": 4,
    }
    return plan_memory(SPEC, **(settings | options))


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda _device: MIB)


def test_a_fraction_of_what_is_free_less_the_samplers_share() -> None:
    budget = planned(memory_fraction=0.5, weights_bytes=7)
    assert budget.num_blocks == (MIB // 2 - SAMPLER) // (16 * PER_TOKEN) - 1
    assert budget == MemoryBudget(
        weights=7,
        available=MIB,
        sampler=SAMPLER,
        kv=(budget.num_blocks + 1) * 16 * PER_TOKEN,
        kv_per_token=PER_TOKEN,
        num_blocks=budget.num_blocks,
        max_tokens=budget.num_blocks * 16,
    )


def test_a_fraction_never_takes_more_than_all_rows_could_fill() -> None:
    assert planned(memory_fraction=0.9, max_model_len=100).num_blocks == 4 * 7


def test_explicit_bytes_and_blocks_are_taken_as_they_are() -> None:
    assert planned(kv_memory_bytes=MIB - 7).num_blocks == (MIB - 7) // (16 * PER_TOKEN) - 1
    assert planned(num_blocks=150).num_blocks == 150


def test_the_store_takes_what_was_planned() -> None:
    budget = planned(kv_memory_bytes=MIB)
    store = KVStore(
        SPEC, num_blocks=budget.num_blocks, block_size=16, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert sum(each.nbytes for each in (*store.keys, *store.values)) == budget.kv <= MIB


def test_more_than_is_free_is_refused_before_it_is_taken() -> None:
    with pytest.raises(OutOfMemoryError, match=r"2\.0 MiB asked for and 1\.0 MiB free; lower kv_memory"):
        planned(kv_memory_bytes=2 * MIB)
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
        planned(memory_fraction=0.001)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert memory._granted_by_control_group(tmp_path) is None
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._granted_by_control_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory._granted_by_control_group(tmp_path) == 700


def test_available_memory_of_this_machine_is_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert memory.available_memory(torch.device("cpu")) > 0
