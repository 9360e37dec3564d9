"""Launches of kernels: programmatic dependent launch (see `pdl.py`), and shared memory."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, Self

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nanoserve.kernels.device.softmax import add_splits_kernel

MOST_SUMMED = 4096
"""Partial sums that one program adds up."""
LITTLE, SHARED = 32 * 1024, 35
"""Bytes of shared memory up to which `prefer_cache` changes a kernel, and the percentage of a multiprocessor's memory that it leaves shared."""
next_power_of_2 = functools.cache(triton.next_power_of_2)
"""Triton's own takes a microsecond or two, which a layer's launches would pay ten times over."""


def launch_options(pdl: bool) -> dict[str, Any]:
    """Launch arguments beside a kernel's own: only a GPU's launch knows PDL."""
    return {"launch_pdl": True} if pdl else {}


def supports_pdl(device: torch.device) -> bool:
    """True if the device can start a kernel before the one before it has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def prefer_cache(graph: int, driver: Any = None) -> None:
    """Let kernels that share little run beside a larger L1 cache, in torch's `raw_cuda_graph()` before it is instantiated; a `driver` that cannot changes nothing."""
    driver = driver or ctypes.CDLL("libcuda.so.1")
    nodes, count = (ctypes.c_void_p * 8192)(), ctypes.c_size_t(8192)
    launch, value = (ctypes.c_uint32 * 18)(), (ctypes.c_uint32 * 16)(SHARED)
    driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in map(ctypes.c_void_p, nodes[: count.value]):
        # Other nodes than kernels have no launch; its ninth word counts the bytes of shared memory, and attribute 14 is the percentage.
        if not driver.cuGraphKernelNodeGetParams_v2(node, launch) and launch[8] <= LITTLE:
            driver.cuGraphKernelNodeSetAttribute(node, 14, value)


@functools.cache
def has_wgmma(device: torch.device) -> bool:
    """True if four warps of the device multiply together, and read what they multiply from shared memory: compute capability 9."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many the device has, and an H200 where there is none."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def described_blocks(tensor: Tensor, *block: int) -> TensorDescriptor:
    """The copy engine's description of a contiguous tensor, to fetch blocks of it; what lies outside is zero."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def described_rows(x: Tensor, *block: int) -> TensorDescriptor:
    """Blocks of contiguous rows. The copy engine takes longer for rows that are not there: it reads what lies behind the last, if anything does."""
    num_rows, k = x.shape
    room = (x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()) // k
    rows = min(triton.cdiv(num_rows, block[0]) * block[0], room)
    return described_blocks(x.as_strided((rows, k), (k, 1)), *block)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have: 99 KiB to 227 KiB."""
    if device.type != "cuda":
        return 163 * 1024
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))


def tile_room(device: torch.device) -> int:
    """Bytes of shared memory that a program's tiles may have: kernels need 2 KiB beside them."""
    return shared_memory(device) - 2048


class SplitScratch(NamedTuple):
    """Partial sums of every (place, head, split), or of every (query, head) between rounds, in this order (see `softmax.py`); kernels in one stream may share it.

    What counts is the product of places and splits, not each of them: a scratch made for 64 places and one split
    serves one place and 64 splits.

    Attributes:
        accs: float32 [sums, width], unnormalised sums of values.
        ms: float32 [sums], the maximum that the exponents are relative to, in units of log2.
        ls: float32 [sums], sums of the exponentials.
    """

    accs: Tensor
    ms: Tensor
    ls: Tensor

    @classmethod
    def create(
        cls, max_batch: int, num_heads: int, width: int, max_splits: int, device: torch.device
    ) -> Self:
        """Scratch for up to max_batch * max_splits (place, split) pairs of num_heads query heads."""
        sums = max_batch * num_heads * max_splits
        return cls(
            *(torch.empty(shape, device=device, dtype=torch.float32) for shape in ((sums, width), sums, sums))
        )


def add_splits(out: Tensor, scratch: SplitScratch, *, splits: int, pdl: bool) -> None:
    """Write what the sums of each result's splits make together to `out` [results, width], contiguous."""
    (results, width), padded = out.shape, next_power_of_2(splits)
    elements = min(next_power_of_2(width), max(16, MOST_SUMMED // padded))
    add_splits_kernel[results, triton.cdiv(width, elements)](
        accs_ptr=scratch.accs, ms_ptr=scratch.ms, ls_ptr=scratch.ls, out_ptr=out, splits=splits,
        WIDTH=width, ELEMENTS=elements, PADDED_SPLITS=padded, PDL=pdl,
        num_warps=1 if padded * elements <= 1024 else 4, **launch_options(pdl),
    )  # fmt: skip
