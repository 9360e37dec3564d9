"""How many KV blocks fit into memory, decided once the weights are in it, and the sums behind that to print."""

from __future__ import annotations

from pathlib import Path

import attrs
import psutil
import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.ports.errors import OutOfMemoryError
from nanoserve.ports.model_spec import ModelSpec

DEFAULT_FRACTION = 0.8
_CONTROL_GROUP = Path("/sys/fs/cgroup")


@attrs.frozen(kw_only=True)
class MemoryBudget:
    """What goes where, in bytes unless a name says otherwise.

    Attributes:
        weights: what the model's weights take already.
        available: free memory that was found; the pool came out of it where its size was not given.
        workspace: what a step computes in, allocated already.
        sampler: set aside for the counts behind penalties, and `reserve` for what else a step may allocate.
        kv: the KV pool, sink block included.
        kv_per_token: keys and values of one token over all layers.
        num_blocks: KV blocks of each cache group, sink block not counted.
        max_tokens: how many tokens those hold.
    """

    weights: int
    workspace: int = 0
    available: int
    sampler: int
    reserve: int = 0
    kv: int
    kv_per_token: int
    num_blocks: int
    max_tokens: int


def plan_memory(
    spec: ModelSpec,
    *,
    block_size: int,
    dtype: torch.dtype,
    max_model_len: int,
    max_num_seqs: int,
    memory_fraction: float = DEFAULT_FRACTION,
    kv_memory_bytes: int | None = None,
    num_blocks: int | None = None,
    weights_bytes: int = 0,
    workspace_bytes: int = 0,
    reserve_bytes: int = 0,
    device: torch.device | None = None,
) -> MemoryBudget:
    """Size the KV pool: `num_blocks` if given, else `kv_memory_bytes`, else a fraction of the memory now free.

    Call it after the weights are loaded: `weights_bytes` and `workspace_bytes` are only reported, `reserve_bytes` are
    left free beside the sampler's. A pool sized by fraction stops at what
    `max_num_seqs` sequences of `max_model_len` tokens could fill.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits, or a size that was given exceeds what is free.
    """
    available = available_memory(device or torch.device("cpu"))
    sampler = max_num_seqs * Penalties.bytes_per_row(spec.vocab_size)
    per_block = KVStore.bytes_per_block(spec, block_size, dtype)
    per_sequence = -(-max_model_len // block_size)
    if num_blocks is None:
        free = int(available * memory_fraction) - sampler - reserve_bytes
        pool = free if kv_memory_bytes is None else kv_memory_bytes
        num_blocks = max(pool // per_block - 1, 0)
        if kv_memory_bytes is None:
            num_blocks = min(num_blocks, max_num_seqs * per_sequence)
    budget = MemoryBudget(
        weights=weights_bytes,
        workspace=workspace_bytes,
        available=available,
        sampler=sampler,
        reserve=reserve_bytes,
        kv=(num_blocks + 1) * per_block,
        kv_per_token=per_block // block_size,
        num_blocks=num_blocks,
        max_tokens=num_blocks * block_size,
    )
    _check_free(budget)
    _check_fit(budget, needed=per_sequence, block_size=block_size, max_model_len=max_model_len)
    return budget


def available_memory(device: torch.device) -> int:
    """Bytes free on the device; on a CPU what the machine has, or what the control group still grants if less."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = int(psutil.virtual_memory().available)
    granted = _granted_by_control_group(_CONTROL_GROUP)
    return free if granted is None else min(free, granted)


def _granted_by_control_group(folder: Path) -> int | None:
    """What a container's memory limit leaves (cgroup v2); None without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used, 0)


def _check_free(budget: MemoryBudget) -> None:
    if budget.kv > budget.available:
        message = f"KV cache: {_readable(budget.kv)} asked for and {_readable(budget.available)} free"
        raise OutOfMemoryError(f"{message}; lower kv_memory or num_kv_blocks")


def _check_fit(budget: MemoryBudget, *, needed: int, block_size: int, max_model_len: int) -> None:
    if budget.num_blocks >= needed:
        return
    weights = f" beside {_readable(budget.weights)} of weights" if budget.weights else ""
    wanted = (needed + 1) * block_size * budget.kv_per_token
    message = (
        f"KV cache: one sequence of max_model_len={max_model_len} tokens needs {needed} blocks of {block_size} tokens "
        f"({_readable(wanted)}), but only {budget.num_blocks} fit ({_readable(budget.kv)} for the KV cache, "
        f"{_readable(budget.available)} free{weights}). Lower max_model_len"
        f"{f' to {budget.max_tokens}' if budget.max_tokens else ''}, give the KV cache more memory, or quantize the weights."
    )
    raise OutOfMemoryError(message)


def _readable(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"
