"""torch's devices and dtypes by the names that settings use, its threads, pages of the host, and GPUs: whether the kernels run on one, and what its driver loads first."""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU: Final = torch.device("cpu")
DEVICES: Final = {"cpu": CPU, "cuda": torch.device("cuda")}
Wanted: TypeAlias = Sequence[tuple[Sequence[int], torch.dtype]]
"""Tensors that are to be made."""
Take: TypeAlias = Callable[[Wanted], list[Tensor]]
"""Makes tensors that are empty, each with a storage of its own."""
_LINE: Final = 64
"""Bytes; tensors start at multiples of it."""
_MAPPED: Final = 2
"""Page-locked memory that kernels may read, too."""
LEAST_CAPABILITY: Final = (8, 0)
"""Compute capability 8.0 (Ampere) is the first with bfloat16 tensor cores and asynchronous copies."""

FLOAT8_CAPABILITY: Final = (8, 9)
"""Compute capability 8.9 (Ada) is the first that converts 8-bit floats."""

_loading: Final[list[threading.Thread]] = []


def load_operators() -> None:
    """Let the driver load what every start on a GPU computes with, in a thread beside imports: each kernel when it is first launched, most of a second in all."""
    _loading.append(threading.Thread(target=compute_alike, args=(DEVICES["cuda"],), name="operators"))
    _loading[-1].start()


def wait_for_operators() -> None:
    """Until they are loaded, and their memory is free."""
    while _loading:
        _loading.pop().join()


@torch.inference_mode()
def compute_alike(device: torch.device, rows: int = 64, columns: int = 1 << 17) -> None:
    """Multiply, and shape and score logits, by the operators that load slowest; whatever fails fails again where it counts."""
    with contextlib.suppress(Exception):
        few, one = (torch.zeros(2, dtype=each, device=device) for each in (torch.int64, torch.bfloat16))
        few.int().index_add_(0, few, few.int())
        narrow = one[:1].repeat(rows, columns)
        for logits in (narrow, narrow.float()):
            equal = (logits == logits.topk(20).values[:, -1:]).int().topk(20, largest=False).values.long()
            order = torch.cat((equal, equal), dim=-1).sort(dim=-1).values
            logits.gather(-1, order.gather(-1, order)).sort(dim=-1, descending=True, stable=True)
            torch.mm(logits[:, :rows], logits[:, :rows].t())
        logits.index_put_((few, few), logits[0, :2].clone(), accumulate=True)


def set_threads(count: int | None) -> int:
    """Compute with this many threads in the whole process, or as many as torch chose; returns how many."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Parameters made inside are of this dtype, except those that ask for another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def why_no_gpu() -> str | None:
    """Why nothing can be computed on a GPU here; None if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of drivers that it cannot use: the answer says so
        available = torch.cuda.is_available()
    if not available:
        built = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        return f"torch finds no usable NVIDIA GPU{built}"
    return _why_below(LEAST_CAPABILITY, "and {} is the least")


def why_no_float8() -> str | None:
    """The reason why kernels on the GPU have no 8-bit floats; None if they do."""
    return _why_below(FLOAT8_CAPABILITY, "and 8-bit floats need {}")


def _why_below(least: tuple[int, int], wanted: str) -> str | None:
    capability = torch.cuda.get_device_capability()
    if capability >= least:
        return None
    found, needed = (".".join(map(str, each)) for each in (capability, least))
    return f"{torch.cuda.get_device_name()} has compute capability {found}, {wanted.format(needed)}"


def count_gpus() -> int:
    """The number of GPUs that this process sees."""
    return torch.cuda.device_count()


def gpu_memory(device: str) -> int:
    """All bytes of a GPU, in use or not; 0 of a CPU."""
    return torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 0


def arithmetic(device: str) -> str:
    """The names that decide the rounding of sums on a device: its kind, and the release of torch."""
    if device == "cuda":
        kind = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    else:
        kind = torch.backends.cpu.get_cpu_capability()
    return f"{kind}, torch {torch.__version__}"


def empty_tensors(wanted: Wanted, device: torch.device) -> list[Tensor]:
    """Tensors of torch's own memory."""
    return [torch.empty(*shape, dtype=dtype, device=device) for shape, dtype in wanted]


def host_pages(wanted: Wanted) -> list[Tensor]:
    """Tensors in one run of the host's memory, each with a storage of its own, in large pages where there are some: faults for every 4 KiB of a model take seconds."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
    starts = [0, *itertools.accumulate(-(-size // _LINE) * _LINE for size in sizes)]
    memory = mmap.mmap(-1, max(starts[-1], _LINE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)

    def tensor(start: int, size: int) -> Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)

    places = zip(wanted, starts, sizes, strict=False)
    return [tensor(start, size).view(dtype).view(tuple(shape)) for (shape, dtype), start, size in places]


def lock_pages(numbers: Tensor) -> None:
    """Page-lock a tensor, one of `host_pages` in 4 ms where torch takes 70, until it is gone: whoever queues a copy to a GPU keeps it until that is over. Launches wait for either."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(runtime.cudaHostRegister(numbers.data_ptr(), numbers.nbytes, _MAPPED)))
    weakref.finalize(numbers, runtime.cudaHostUnregister, numbers.data_ptr()).atexit = False


class _Block:
    """Memory as torch takes it from others; it keeps its owner as long as there are tensors over it."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def bytes_at(address: int, size: int, device: torch.device, owner: object = None) -> Tensor:
    """Memory of a GPU that torch has not allocated: uint8 [size]."""
    return torch.as_tensor(_Block(address, size, owner), device=device)


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of (nested) numbers; on a GPU it is there before anything that is queued later.

    A copy from ordinary memory waits until the device has done all it was given; from pinned memory it is queued.
    """
    staged = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return staged.to(device, non_blocking=True)
