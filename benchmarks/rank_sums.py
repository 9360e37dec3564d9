"""What GPUs of one machine need to add up their parts, norm the sum and gather logits, in captured graphs, beside NCCL.

`python -m benchmarks.rank_sums --ranks 2`. Each number is the time of one exchange when many follow one another, with no product between them.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from benchmarks.gpu_ranks import meet, run_ranks
from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange
from nanoserve.adapters.pytorch.cuda.sums import Pending
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.parallel.peer_memory import PeerMemory
from nanoserve.kernels.pointwise.launch import add_rms_norm_into
from nanoserve.ports.model_spec import NormSpec

ROWS = (1, 8, 64, 200, 512, 2048, 8192)
IN_GRAPH = 64
REPLAYS = 10
REPEATS = 5
VOCABULARY = 128_256


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        measure(arguments.rank, arguments.ranks, arguments.hidden, arguments.port)
        return
    sys.exit(run_ranks("benchmarks.rank_sums", arguments.ranks))


@torch.inference_mode()
def measure(rank: int, size: int, hidden: int, port: int) -> None:
    """Meet the other ranks, check the sums, and time each size."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    c10d: Any = torch.distributed
    c10d.init_process_group("nccl", rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{port}")
    ranks = meet(rank, size, port + 1)
    exchange = Exchange(
        ranks,
        PeerMemory,
        max_tokens=max(ROWS),
        hidden=hidden,
        max_logits=128,
        vocab_size=VOCABULARY,
        dtype=dtype,
        device=device,
    )
    exchange.meet()
    exchange.try_out()
    exchange.start_serving()
    if rank == 0:
        print(f"{size} x {torch.cuda.get_device_name()}; sums are right; microseconds, hidden {hidden}")
        print("rows     size     norm alone    fused    fused, PDL    NCCL + norm    NCCL")
    norm = RMSNorm(hidden, NormSpec(eps=1e-5)).to(device, dtype)
    norm.weight.fill_(1)
    for rows in ROWS:
        times = timed_sums(exchange, norm, rows)
        exchange.check()
        if rank == 0:
            size_of = f"{rows * hidden * 2 / 1024:.0f} KB"
            print(f"{rows:5d} {size_of:>9s}", *(f"{each:12.1f}" for each in times), flush=True)
    for rows in (1, 64):
        time = timed_gathering(exchange, torch.zeros(rows, VOCABULARY, dtype=dtype, device=device))
        if rank == 0:
            print(f"logits of {rows} rows gathered: {time:.1f}", flush=True)
    os._exit(0)


def timed_sums(exchange: Exchange, norm: RMSNorm, rows: int) -> list[float]:
    """Microseconds of the norm alone, of the exchange with it, without and with PDL, of NCCL's with it, and of NCCL's alone."""
    stream, out, part = (norm.weight.new_zeros(rows, len(norm.weight)) for _ in range(3))
    c10d: Any = torch.distributed

    def alone(*, pdl: bool = True) -> None:
        add_rms_norm_into(stream, norm.weight, out, partials=part[None], eps=norm.eps, pdl=pdl)

    def fused(*, pdl: bool) -> None:
        exchange.complete(stream, Pending(stream[None]), norm, out, pdl=pdl)

    def reduce() -> None:
        c10d.all_reduce(part)

    def reduce_and_norm() -> None:
        reduce()
        alone(pdl=False)

    exchange.part(rows).zero_()
    works: list[Callable[[], None]] = [
        alone,
        functools.partial(fused, pdl=False),
        functools.partial(fused, pdl=True),
        reduce_and_norm,
        reduce,
    ]
    return [timed(each) for each in works]


def timed_gathering(exchange: Exchange, logits: Tensor) -> float:
    """Microseconds of filling logits [rows, VOCABULARY] with the shards of all ranks."""
    exchange.columns(logits, -(-VOCABULARY // exchange.ranks.size)).zero_()
    return timed(functools.partial(exchange.gather, logits, pdl=True))


def timed(work: Callable[[], None]) -> float:
    """Microseconds of one call among many in a graph."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(IN_GRAPH):
            work()
        graph.capture_end()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1000 / REPLAYS / IN_GRAPH)
    return float(statistics.median(found))


if __name__ == "__main__":
    main()
