"""Puts the GPU data plane together: measures what the worst step needs, sizes the cache from what is left, warms up."""

from __future__ import annotations

import time
from typing import cast

import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena, Capacity
from nanoserve.adapters.pytorch.cuda.attending import Attending, rotation_table
from nanoserve.adapters.pytorch.cuda.chains import Chains
from nanoserve.adapters.pytorch.cuda.graphs import buckets
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner, Settings
from nanoserve.adapters.pytorch.cuda.self_test import check_kernels
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.cuda.workspace import make_workspace
from nanoserve.adapters.pytorch.cuda.worst_step import worst_step_bytes
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.memory import MemoryBudget, plan_memory
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.llama import Llama
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.kernels.decode_attention import choose_splits, choose_tile
from nanoserve.kernels.prefill_attention import choose_block, queries_per_tile
from nanoserve.kernels.triton_launch import supports_pdl

RING_SLOTS = 8
FIRST_GRAPHS = (1, 2, 8, 16, 32, 64, 128, 256)
"""Sizes of batch whose graphs are captured before the engine is ready; the others when they first occur."""
CUDA_FRACTION = 0.92
GRAPH_BYTES = 512 << 20
"""Left free for graphs and for the workspaces of the vendor's library."""
SMALL_GPU = 4
"""Multiprocessors to plan for where kernels are interpreted."""


def build_runner(
    model: DecoderModel,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    num_blocks: int | None = None,
    memory_fraction: float | None = None,
    kv_memory_bytes: int | None = None,
    deterministic: bool = False,
    enforce_eager: bool = False,
) -> tuple[CudaRunner, MemoryBudget]:
    """Build the runner of a model whose weights are on the GPU.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits beside weights and workspace.
        ModelLoadError: a kernel computes something else than its reference on this GPU.
    """
    watch = _Watch()
    device, dtype, spec = next(model.parameters()).device, next(model.parameters()).dtype, model.spec
    llama = cast("Llama", model)
    on_gpu = device.type == "cuda"
    pdl = supports_pdl(device) and not enforce_eager
    if on_gpu:
        check_kernels(
            llama, block_size=block_size, device=device, dtype=dtype, deterministic=deterministic, pdl=pdl
        )
        torch.cuda.empty_cache()
        watch.lap("kernel self-test")
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    tile = queries_per_tile(spec.num_heads, spec.num_kv_heads, choose_block(spec.head_dim, dtype))
    capacity = Capacity(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        block_size=block_size,
        num_groups=len(spec.cache_groups),
        max_tokens=max_num_batched_tokens,
        max_tiles=max_num_batched_tokens // tile + max_num_seqs + 1,
        ring_slots=RING_SLOTS,
    )
    num_multiprocessors = (
        torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else SMALL_GPU
    )

    def splits_for(bucket: int, longest: int) -> int:
        tile = choose_tile(bucket, spec.head_dim, dtype).tokens
        return choose_splits(bucket, spec.num_kv_heads, longest, num_multiprocessors, tile)

    space = make_workspace(
        spec,
        max_tokens=max(max_num_batched_tokens, max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_place_splits=max(bucket * splits_for(bucket, max_model_len) for bucket in buckets(max_num_seqs)),
        dtype=dtype,
        device=device,
    )
    arena = Arena(capacity, Uploads(device))
    rotary = Rotary(spec.rope, spec.head_dim, device)
    rotations = rotation_table(rotary, max_model_len + 1, device)
    workspace_bytes = torch.cuda.memory_allocated(device) - before if on_gpu else 0
    sampler_bytes = max_num_seqs * Penalties.bytes_per_row(spec.vocab_size)
    worst = worst_step_bytes(spec, space, max_num_seqs=max_num_seqs) if on_gpu else 0
    watch.lap("memory profile")
    budget = plan_memory(
        spec,
        block_size=block_size,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        memory_fraction=memory_fraction or CUDA_FRACTION,
        kv_memory_bytes=kv_memory_bytes,
        num_blocks=num_blocks,
        weights_bytes=sum(each.numel() * each.element_size() for each in model.parameters()),
        workspace_bytes=workspace_bytes,
        reserve_bytes=max(worst - sampler_bytes, 0) + (GRAPH_BYTES if on_gpu else 0),
        device=device,
    )
    kv = KVStore(spec, num_blocks=budget.num_blocks, block_size=block_size, dtype=dtype, device=device)
    chains = Chains(
        llama, arena, space, Attending(llama, arena, space, kv, rotations), invariant=deterministic
    )
    sampler = DeviceSampler(vocab_size=spec.vocab_size, max_rows=max_num_seqs, device=device)
    settings = Settings(
        graphs=on_gpu and not enforce_eager,
        pdl=pdl,
        tile_queries=tile,
        choose_splits=splits_for,
    )
    runner = CudaRunner(chains=chains, arena=arena, space=space, sampler=sampler, kv=kv, settings=settings)
    watch.lap("KV pool")
    if on_gpu:
        runner.prepare(FIRST_GRAPHS)
        torch.cuda.synchronize(device)
    watch.lap("warm-up and graphs")
    runner.start_serving(watch.phases)
    return runner, budget


class _Watch:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now
