"""Whatever serving launches has been rehearsed, in every variant that Triton compiles; needs no GPU."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any, cast

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.batches import buckets
from nanoserve.adapters.pytorch.cuda.building import _Site
from nanoserve.adapters.pytorch.cuda.graphs import Keys
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.kernels.experts.launch import list_ways
from nanoserve.kernels.experts.reference import Experts
from nanoserve.kernels.experts.tuning import list_tile, sorting
from nanoserve.kernels.paged_attention.tuning import choose_splits, choose_tile, key_bytes
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.layer_spec import ExpertsSpec
from tests.tiny_spec import TINY

LEAST_VARIANTS = 30
"""Of the smallest rehearsal."""
LAYERS = tuple(attrs.evolve(each, feed=ExpertsSpec(count=4, top=2, size=16)) for each in TINY.layers)
MIXTURE = attrs.evolve(TINY, architecture="qwen3_moe", layers=LAYERS)


def test_no_family_compiles_a_kernel_while_serving() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.interpreter.cuda.variants"],
        env=environment,
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: late for name, (_, late, _) in found.items() if late} == {}
    assert all(rehearsed > LEAST_VARIANTS for rehearsed, _, _ in found.values()), found
    # Each number of rows that is new to the vendor's library takes milliseconds.
    assert {name: rows for name, (*_, rows) in found.items() if rows} == {}


@pytest.mark.parametrize(("count", "slots"), [(8, 2), (128, 8), (512, 11)])
def test_list_ways_are_all_there_are(count: int, slots: int) -> None:
    most, room = 3000, 163 * 1024
    weights = Experts(torch.empty(count, 2, 1), torch.empty(count, 1, 1))

    def way(tokens: int) -> tuple[object, ...]:
        how = sorting(tokens * slots, count)
        return list_tile(tokens, slots, count, 2, room=room, invariant=False), how.programs, how.all

    found = list_ways(weights, slots, most, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert {way(tokens) for tokens in found} == {way(tokens) for tokens in range(1, most + 1)}
    assert len(found) < 20


def test_few_short_rows_are_rehearsed_with_no_more_chunks_than_there_are_rows() -> None:
    """A step describes one chunk of each row at most: what is more lies behind its place in the arena."""
    device = torch.device("cpu")
    model = build_random_model(MIXTURE, dtype=torch.float32, device=device, seed=0, keep=True)
    sizes = EngineSizes(
        max_num_seqs=2,
        max_num_batched_tokens=8192,
        max_model_len=64,
        vocab_size=MIXTURE.vocab_size,
        block_size=16,
        num_blocks=8,
    )
    site = _Site(model, sizes, None, deterministic=False, enforce_eager=True)
    assert 1 < max(site.token_counts(invariant=False)) <= 2 * 64


MULTIPROCESSORS = (72, 84, 108, 114, 132, 142, 148)
"""Of GPUs from an A10 to a B200."""


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float8_e4m3fn], ids=["bfloat16", "fp8"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 5, 6, 7, 8, 10, 32])
def test_attention_of_every_batch_is_rehearsed(kv_heads: int, head_dim: int, kept: torch.dtype) -> None:
    """Each tiling is a kernel for rows that are split, and another for those that are not; each number of splits is one that adds them up."""
    for num_sms, most, longest in itertools.product(MULTIPROCESSORS, (136, 256), (1024, 8192)):
        missing = late_attention((kv_heads, head_dim, kept), num_sms, most, longest)
        assert not missing, (num_sms, most, longest, missing)


def late_attention(
    heads: tuple[int, int, torch.dtype], num_sms: int, most: int, longest: int
) -> dict[object, tuple[int, int]]:
    """The kernels of rows that decode which rehearsals leave out, with a size of batch and the tokens of its longest row."""
    kv_heads, head_dim, kept = heads
    sizes = EngineSizes(
        max_num_seqs=most,
        max_num_batched_tokens=most,
        max_model_len=longest,
        vocab_size=1,
        block_size=16,
        num_blocks=8,
    )

    def choose(bucket: int, tokens: int) -> int:
        tile, size = choose_tile(bucket, head_dim, kept).tokens, key_bytes(head_dim, torch.bfloat16)
        return choose_splits(bucket, kv_heads, tokens, num_sms, tile, size=size)

    def kernels(bucket: int, splits: int) -> set[object]:
        tiling = choose_tile(bucket, head_dim, kept, splits, kv_heads=kv_heads)
        return {(tiling, splits > 1), splits}

    keys = Keys(sizes, choose)
    rehearsal = object.__new__(Rehearsal)
    rehearsal._arena = cast("Any", types.SimpleNamespace(sizes=sizes))
    rehearsal._decoding = cast("Any", types.SimpleNamespace(keys=keys))
    found = {
        each for size, every in rehearsal._batches() for splits in every for each in kernels(size, splits)
    }
    edges = {1, longest} | {2**power + more for power in range(5, 14) for more in (0, 1, 2 ** (power - 1))}
    met = ((size, tokens) for size in buckets(most) for tokens in edges if tokens <= longest)
    return {
        each: (size, tokens)
        for size, tokens in met
        for each in kernels(size, keys.splits(size, tokens)) - found
    }
