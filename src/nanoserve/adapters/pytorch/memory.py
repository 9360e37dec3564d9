"""The number of KV blocks that fit into memory beside the weights, and the division of memory to print.

Each cache group has a pool of its own. What the laws bound, windows and recurrent states, gets what so many rows can use
as fit into the memory when each is of usual length; what grows with the text shares the rest.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import psutil
import torch

from nanoserve.adapters.pytorch.mixers.attention.kind import KEPT_BYTES, KEPT_SHARE
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import OutOfMemoryError
from nanoserve.ports.model_spec import Full, ModelSpec, PoolNeed, per_group

DEFAULT_FRACTION = 0.8
CPU_KV_BYTES = 4 * 2**30
"""The most that a CPU's KV cache takes unasked, one sequence of `max_model_len` apart: the machine is not the engine's alone."""
CONTROL_GROUP = Path("/sys/fs/cgroup")


@attrs.frozen(kw_only=True)
class MemoryBudget:
    """The division of memory, in bytes unless a name says otherwise.

    Attributes:
        weights: what the model's weights take already.
        available: free memory that was found; the pool came out of it where its size was not given.
        workspace: what a step computes in, allocated already.
        sampler: set aside for the counts behind penalties, and `reserve` for what else a step may allocate.
        kv: the KV pool, sink block included.
        num_blocks: KV blocks (or states) of each cache group, the sink not counted.
        max_tokens: how many tokens the largest group holds.
        kv_share: as in `EngineSizes`.
    """

    weights: int
    workspace: int = 0
    available: int
    sampler: int
    reserve: int = 0
    kv: int
    num_blocks: tuple[int, ...]
    max_tokens: int
    kv_share: str = "KV cache"

    def shares(self, kept: Mapping[str, int]) -> dict[str, int]:
        """A GPU's memory by its use; `kept` are the weights that stay as stored, by form."""
        return {
            **{f"weights in {form}": size for form, size in kept.items()},
            "other weights" if kept else "weights": self.weights - sum(kept.values()),
            "workspace": self.workspace,
            "sampler": self.sampler,
            "reserve": self.reserve,
            self.kv_share: self.kv,
            "left free": self.available - self.sampler - self.reserve - self.kv,
        }


@attrs.frozen(kw_only=True)
class PoolRequest:
    """The requested size of the KV pools.

    Attributes:
        needs: what the law of each cache group asks for.
        num_blocks: of every group, but of one whose law bounds it no more than it can use; None leaves it to `memory`.
        memory: bytes if an integer, a fraction of the free memory if not; None for the device's usual fraction.
    """

    needs: tuple[PoolNeed, ...]
    num_blocks: int | None = None
    memory: int | float | None = None


def plan_memory(
    spec: ModelSpec,
    sizes: EngineSizes,
    request: PoolRequest | None = None,
    *,
    dtype: torch.dtype,
    available: int,
    usual_fraction: float = DEFAULT_FRACTION,
    usual_bytes: int | None = None,
    weights: int = 0,
    workspace: int = 0,
    reserve: int = 0,
    beside: bool = False,
    keeps_rows: bool = False,
) -> MemoryBudget:
    """Size the KV pools as requested, on a device with so many bytes `available`; without a request they are those of `sizes`.

    A pool sized by fraction stops at what `max_num_seqs` sequences of `max_model_len` tokens could fill; one of the usual
    fraction also at `usual_bytes`, if one such sequence fits into them.
    Call it after the weights are loaded: the bytes of `weights` and `workspace` are only reported, those of `reserve` are
    left free beside the sampler's. With `beside`, another engine has that memory as long as this one sleeps, and its sizes are taken as
    they are. With `keeps_rows` a pool sized by fraction leaves room for what decoding rows keep beside it, if one such sequence fits then.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits, or a size that was given exceeds what is free.
    """
    sampler = sizes.max_num_seqs * Penalties.bytes_per_row(spec.vocab_size)
    pages = _page_bytes(spec, sizes, dtype)
    if request is None:
        counts = per_group(sizes.num_blocks, len(pages))
    else:
        fraction = request.memory if isinstance(request.memory, float) else usual_fraction
        room = int(available * fraction) - sampler - reserve
        least = _bytes_of([need.least for need in request.needs], pages)
        if keeps_rows:
            room = _room_beside_rows(spec, room, least)
        if usual_bytes is not None and request.memory is None:
            room = min(room, max(usual_bytes, least))
        counts = _counts(request, pages, sizes.max_num_seqs, room)
    budget = MemoryBudget(
        weights=weights,
        workspace=workspace,
        available=available,
        sampler=sampler,
        reserve=reserve,
        kv=_bytes_of(counts, pages),
        num_blocks=counts,
        max_tokens=max(counts) * sizes.block_size,
        kv_share=sizes.kv_share,
    )
    if beside:
        return attrs.evolve(budget, available=budget.kv + sampler + reserve)
    if budget.kv > available:
        message = f"KV cache: {_readable(budget.kv)} asked for and {_readable(available)} free"
        raise OutOfMemoryError(f"{message}; lower kv_memory or num_kv_blocks")
    if request is not None:
        _check_fit(budget, sizes, request.needs, pages)
    return budget


def _page_bytes(spec: ModelSpec, sizes: EngineSizes, dtype: torch.dtype) -> list[int]:
    """The bytes of a page of each cache group, experts that are recorded beside blocks included."""
    pages = [group.page_bytes(sizes.block_size, dtype.itemsize) for group in spec.cache_groups]
    if sizes.routed_experts and spec.complete_group is not None:
        pages[spec.complete_group] += sizes.block_size * math.prod(sizes.routed_experts)
    return pages


def _room_beside_rows(spec: ModelSpec, room: int, least: int) -> int:
    """The part of the room that is not for the rows that decoding keeps; no less than one sequence needs, if there is as much."""
    full = sum(isinstance(each.kind, Full) for each in spec.cache_groups)
    if not full:
        return room
    return max(min(room * KEPT_SHARE // (KEPT_SHARE + 1), room - full * KEPT_BYTES), min(room, least))


def _counts(request: PoolRequest, pages: Sequence[int], rows: int, room: int) -> tuple[int, ...]:
    """Pages of each group; `room` is for a pool sized by fraction."""
    needs, memory = request.needs, request.memory
    most = [need.most(rows) for need in needs]
    if request.num_blocks is not None:
        given = request.num_blocks
        return tuple(
            min(given, bound) if need.usual is None else given
            for need, bound in zip(needs, most, strict=True)
        )
    if isinstance(memory, int):
        return share_out(memory, pages, needs, rows)
    return tuple(map(min, share_out(room, pages, needs, rows), most))


def share_out(
    memory: int, page_bytes: Sequence[int], needs: Sequence[PoolNeed], max_num_seqs: int
) -> tuple[int, ...]:
    """Pages of each cache group out of this many bytes, in which each pool's sink page has its place.

    What is bounded gets what as many rows can use as fit, each of usual length; what is not gets all the rest, the same number
    of pages in each group. No bounded group gets more than those: where windows are as long as texts, all get the same.
    """
    left = max(memory - sum(page_bytes), 0)

    def cost(counts: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(counts, page_bytes, strict=True))

    def for_rows(rows: int) -> list[int]:
        usual = ((need, need.usual) for need in needs)
        return [need.most(rows) if each is None else max(need.least, rows * each) for need, each in usual]

    rows = bisect.bisect_right(range(1, max_num_seqs + 1), left, key=lambda rows: cost(for_rows(rows)))
    bounds = for_rows(rows) if rows else [need.least for need in needs]
    growing = sum(size for size, need in zip(page_bytes, needs, strict=True) if need.usual is not None)
    if not growing:
        return tuple(bounds) if cost(bounds) <= left else (0,) * len(bounds)

    def for_texts(count: int) -> list[int]:
        limits = zip(needs, bounds, strict=True)
        return [max(need.least, min(bound, count)) if need.usual is None else count for need, bound in limits]

    fitting = bisect.bisect_right(range(left // growing + 1), left, key=lambda count: cost(for_texts(count)))
    return tuple(for_texts(max(fitting - 1, 0)))


def _bytes_of(counts: Sequence[int], page_bytes: Sequence[int]) -> int:
    return sum((count + 1) * size for count, size in zip(counts, page_bytes, strict=True))


def available_memory(device: torch.device) -> int:
    """Bytes free on the device; on a CPU those of the machine, or of the control group if fewer."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # `max` is no limit
        limit, used = (int((CONTROL_GROUP / f"memory.{each}").read_text()) for each in ("max", "current"))
        free = min(free, max(limit - used, 0))
    return free


def _check_fit(
    budget: MemoryBudget, sizes: EngineSizes, needs: Sequence[PoolNeed], pages: Sequence[int]
) -> None:
    for count, need in zip(budget.num_blocks, needs, strict=True):
        if count < need.least:
            wanted = _readable(_bytes_of([each.least for each in needs], pages))
            weights = f" beside {_readable(budget.weights)} of weights" if budget.weights else ""
            raise OutOfMemoryError(
                f"KV cache: one sequence of max_model_len={sizes.max_model_len} tokens needs {need.least} blocks of "
                f"{sizes.block_size} tokens ({wanted}), but only {count} fit ({_readable(budget.kv)} for the KV cache, "
                f"{_readable(budget.available)} free{weights}). Lower max_model_len"
                f"{f' to {budget.max_tokens}' if budget.max_tokens else ''}, give the KV cache more memory, or quantize the weights."
            )


def _readable(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"
