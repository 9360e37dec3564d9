"""Puts the GPU data plane together: a cache sized from what the worst step leaves, kernels compiled, checked and warm."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.attending import Attending, rotation_table
from nanoserve.adapters.pytorch.cuda.chains import Chains
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.decoding import Settings, buckets
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.self_test import Bench, check_kernels, rehearse_checks
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.cuda.workspace import Workspace, make_workspace
from nanoserve.adapters.pytorch.cuda.worst_step import worst_step_bytes
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.memory import MemoryBudget, PoolRequest, plan_memory
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.kernels.decode_attention.tuning import choose_splits, choose_tile
from nanoserve.kernels.prefill_attention.tuning import choose_block, queries_per_tile
from nanoserve.kernels.triton_launch import supports_pdl
from nanoserve.ports.engine_facts import EngineSizes

FIRST_GRAPHS = (1, 2, 8, 16, 32, 64, 128, 256)
"""Sizes of batch whose graphs are captured before the engine is ready; the others when they first occur."""
CUDA_FRACTION = 0.92
"""Of the free memory that the KV pool may have where the settings do not say."""
GRAPH_BYTES = 512 << 20
"""Left free for graphs and for the workspaces of the vendor's library."""
SMALL_GPU = 4
"""Multiprocessors to plan for where kernels are interpreted."""


class _Watch:
    """Seconds of each phase."""

    def __init__(self) -> None:
        """Start with the first."""
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """What came since the last lap was this phase."""
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now


@attrs.frozen(kw_only=True, eq=False)
class _Order:
    """What `build_runner` was asked for, and on which device."""

    model: DecoderModel
    sizes: EngineSizes
    pools: PoolRequest | None
    deterministic: bool
    enforce_eager: bool
    device: torch.device
    dtype: torch.dtype

    @property
    def on_gpu(self) -> bool:
        """Whether kernels are compiled and not interpreted."""
        return self.device.type == "cuda"

    @property
    def pdl(self) -> bool:
        """Whether the kernels of a decode step overlap."""
        return supports_pdl(self.device) and not self.enforce_eager


def build_runner(
    model: DecoderModel,
    sizes: EngineSizes,
    pools: PoolRequest | None = None,
    *,
    deterministic: bool = False,
    enforce_eager: bool = False,
) -> tuple[CudaRunner, MemoryBudget]:
    """Build the runner of a model whose weights are on the GPU; `pools` is as in `plan_memory`.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits beside weights and workspace.
        ModelLoadError: a kernel computes something else than its reference on this GPU.
    """
    weight = next(model.parameters())
    order = _Order(
        model=model,
        sizes=sizes,
        pools=pools,
        deterministic=deterministic,
        enforce_eager=enforce_eager,
        device=weight.device,
        dtype=weight.dtype,
    )
    watch = _Watch()
    ahead = compiling_ahead(os.cpu_count() or 1) if order.on_gpu else contextlib.nullcontext()
    with ahead:
        choose_splits_of = _splits_of(order)
        space = _make_space(order, choose_splits_of)
        arena = _make_arena(order)
        budget = _plan_pool(order, space)
        watch.lap("memory profile")
        runner = _assemble(order, budget, arena, space, choose_splits_of)
        watch.lap("KV pool")
        if order.on_gpu:  # nothing runs yet: what is launched here only says what there is to compile
            bench = _bench_of(order)
            runner.rehearse(FIRST_GRAPHS)
            rehearse_checks(bench)
    if order.on_gpu:
        watch.lap("compiling")
        _make_ready(runner, bench, watch)
    runner.start_serving(watch.phases)
    return runner, budget


def _splits_of(order: _Order) -> Callable[[int, int], int]:
    """Splits of decode attention for a bucket and the length of its longest row."""
    spec = order.model.spec
    widest = max(group.window or order.sizes.max_model_len for group in spec.cache_groups)
    num_multiprocessors = (
        torch.cuda.get_device_properties(order.device).multi_processor_count if order.on_gpu else SMALL_GPU
    )

    def splits(bucket: int, longest: int) -> int:
        tile = choose_tile(bucket, spec.head_dim, order.dtype).tokens
        return choose_splits(bucket, spec.num_kv_heads, min(longest, widest), num_multiprocessors, tile)

    return splits


def _make_space(order: _Order, splits: Callable[[int, int], int]) -> Workspace:
    every = buckets(order.sizes.max_num_seqs)
    return make_workspace(
        order.model,
        max_tokens=max(order.sizes.max_num_batched_tokens, order.sizes.max_num_seqs),
        max_num_seqs=order.sizes.max_num_seqs,
        max_place_splits=max(bucket * splits(bucket, order.sizes.max_model_len) for bucket in every),
        dtype=order.dtype,
        device=order.device,
    )


def _make_arena(order: _Order) -> Arena:
    sizes = order.sizes
    return Arena(
        sizes,
        num_groups=len(order.model.spec.cache_groups),
        max_tiles=sizes.max_num_batched_tokens // _tile_queries(order) + sizes.max_num_seqs + 1,
        uploads=Uploads(order.device),
    )


def _tile_queries(order: _Order) -> int:
    spec = order.model.spec
    return queries_per_tile(spec.num_heads, spec.num_kv_heads, choose_block(spec.head_dim, order.dtype))


def _plan_pool(order: _Order, space: Workspace) -> MemoryBudget:
    """Size the KV pool from what weights, workspace and the worst step leave."""
    spec = order.model.spec
    weights = sum(each.numel() * each.element_size() for each in order.model.parameters())
    workspace, reserve = 0, 0
    if order.on_gpu:
        workspace = torch.cuda.memory_allocated(order.device) - weights
        worst = worst_step_bytes(spec, space, max_num_seqs=order.sizes.max_num_seqs)
        counts = order.sizes.max_num_seqs * Penalties.bytes_per_row(spec.vocab_size)
        reserve = max(worst - counts, 0) + GRAPH_BYTES
    return plan_memory(
        spec,
        order.sizes,
        order.pools,
        dtype=order.dtype,
        usual_fraction=CUDA_FRACTION,
        weights=weights,
        workspace=workspace,
        reserve=reserve,
        device=order.device,
    )


def _assemble(
    order: _Order, budget: MemoryBudget, arena: Arena, space: Workspace, splits: Callable[[int, int], int]
) -> CudaRunner:
    model, spec = order.model, order.model.spec
    kv = KVStore(
        spec,
        num_blocks=budget.num_blocks,
        block_size=order.sizes.block_size,
        dtype=order.dtype,
        device=order.device,
    )
    rotary = Rotary(spec.rope, spec.head_dim, order.device)
    rotations = rotation_table(rotary, order.sizes.max_model_len + 1, order.device)
    attending = Attending(spec, arena, space, kv, rotations, invariant=order.deterministic)
    chains = functools.partial(Chains, model, arena, space, attending, invariant=order.deterministic)
    return CudaRunner(
        chains=chains(),
        rehearsal=chains(brief=True),
        arena=arena,
        space=space,
        sampler=DeviceSampler(
            vocab_size=spec.vocab_size, max_rows=order.sizes.max_num_seqs, device=order.device
        ),
        kv=kv,
        settings=Settings(
            graphs=order.on_gpu and not order.enforce_eager,
            pdl=order.pdl,
            tile_queries=_tile_queries(order),
            choose_splits=splits,
        ),
    )


def _bench_of(order: _Order) -> Bench:
    return Bench(
        model=order.model,
        block_size=order.sizes.block_size,
        device=order.device,
        dtype=order.dtype,
        deterministic=order.deterministic,
        pdl=order.pdl,
    )


def _make_ready(runner: CudaRunner, bench: Bench, watch: _Watch) -> None:
    """Hold what serving runs against its references, run it once and capture the first graphs."""
    check_kernels(bench)
    torch.cuda.empty_cache()
    watch.lap("kernel self-test")
    runner.prepare(FIRST_GRAPHS)
    torch.cuda.synchronize(bench.device)
    watch.lap("warm-up and graphs")
