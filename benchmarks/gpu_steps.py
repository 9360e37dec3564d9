"""Decode steps of a published shape on a GPU, one captured graph each, beside the floor of the memory's bandwidth.

`python -m benchmarks.gpu_steps --model shape:llama-3.2-1b --batch 1 8 64 256 --context 1000`. With `--kernels` also each
kernel's share, from the profiler. Rows are set up by hand, so what is timed is the device alone. `--width 1 2 4 8` times wide steps, too: by
how much longer one takes is by how many tokens a row must gain in it. `--quantization fp8` or `int4` keeps the weights in these, `--quantize-head` the head.
`--adapters 0 1 32` times steps whose rows have none, all the same LoRA adapter, and 32 different ones in turn, of rank `--adapter-rank` in all linear layers.
With `--ranks 2` two GPUs compute each step together, and the first one's times are told; a kernel that waits for the other rank includes the wait.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceilings import read_bandwidth
from benchmarks.gpu_ranks import meet, need_gpu, run_ranks
from nanoserve.adapters.pytorch.cuda.building import Partners, build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.lora.layout import LoraWeights
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.parallel.peer_memory import PeerMemory
from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.step import AdmittedRow, LoraLoad, RowSampling, StepPlan

BLOCK_SIZE = 16
REPEATS = 7
REPLAYS = 10


def main() -> None:
    """Build once, then time each batch and context."""
    arguments = _arguments()
    need_gpu()
    if arguments.ranks > 1 and arguments.rank is None:
        sys.exit(run_ranks("benchmarks.gpu_steps", arguments.ranks))
    ranks = _meet_ranks(arguments)
    spec = find_shape(arguments.model)
    if arguments.kv_cache_dtype == "fp8":
        spec = spec.keeping("fp8")
    device = torch.device("cuda")
    model = build_random_model(
        spec,
        dtype=torch.bfloat16,
        device=device,
        seed=0,
        quantization=arguments.quantization,
        quantize_head=arguments.quantize_head,
        ranks=ranks,
        expert_parallel=arguments.expert_parallel and ranks.size > 1,
    )
    spec = model.spec
    weights = _bytes(model) - (0 if spec.tied_embeddings else _bytes(model.embedding))
    bandwidth = read_bandwidth(device)
    print(
        f"{torch.cuda.get_device_name()}: reads {bandwidth / 1e12:.2f} TB/s; weights {weights / 1e9:.2f} GB"
    )
    sizes = make_sizes(arguments, spec)
    partners = None if ranks.size == 1 else Partners(ranks, PeerMemory, lambda _: None)
    how: dict[str, Any] = {"deterministic": arguments.deterministic, "enforce_eager": arguments.eager}
    runner, _ = build_runner(model, sizes, **how, partners=partners)
    load_adapters(runner, sizes.max_loras, arguments.adapter_rank)
    results: list[dict[str, Any]] = []
    for context, size in itertools.product(arguments.context, arguments.batch):
        floor = (weights + size * context * spec.kv_bytes_per_token(2)) / bandwidth * 1e6
        for found in measure(runner, spec, arguments, context, size):
            results.append({**found, "floor_us": floor})
            print_step(found, floor)
            if arguments.kernels:
                print_kernels(runner, size, found["width"], ranks.size)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results), encoding="utf-8")
    if ranks.size > 1:
        os._exit(0)  # the other ranks may be reading this one's memory


def make_sizes(arguments: argparse.Namespace, spec: ModelSpec) -> EngineSizes:
    """Those of an engine that holds the largest batch of the longest rows."""
    longest, batch = max(arguments.context), max(arguments.batch)
    return EngineSizes(
        max_num_seqs=batch,
        max_num_batched_tokens=max(batch, 2048),
        max_model_len=longest + 256,
        vocab_size=spec.vocab_size,
        block_size=BLOCK_SIZE,
        num_blocks=(longest // BLOCK_SIZE + 17) * batch,
        max_width=max(arguments.width),
        max_loras=max(arguments.adapters),
        max_lora_rank=arguments.adapter_rank if any(arguments.adapters) else 0,
    )


def measure(
    runner: CudaRunner, spec: ModelSpec, arguments: argparse.Namespace, context: int, size: int
) -> Iterator[dict[str, Any]]:
    """Steps of a batch in each width and with each number of adapters; `ratio` is to the first one."""
    first = 0.0
    for asked, adapters in itertools.product(arguments.width, arguments.adapters):
        microseconds, width = time_steps(runner, spec, size, context, asked, adapters=adapters)
        if width < asked or adapters > size:
            continue  # not worth it in so large a batch, or too many for it
        first = first or microseconds
        sizes = {"batch": size, "context": context, "width": width, "adapters": adapters}
        yield {**sizes, "us": microseconds, "ratio": microseconds / first}


def print_step(found: dict[str, Any], floor: float) -> None:
    """One line."""
    microseconds = found["us"]
    print(
        "batch {batch:4d} context {context:6d} width {width} adapters {adapters}: {us:8.1f} us/step ({ratio:.3f}),".format(
            **found
        ),
        f"{found['batch'] / microseconds * 1e6:9.0f} tok/s, floor {floor:7.1f} us ({floor / microseconds:.0%})",
        flush=True,
    )


def _meet_ranks(arguments: argparse.Namespace) -> Communicator:
    """The other ranks, of which the first alone prints."""
    if arguments.rank is None:
        return ALONE
    if arguments.rank > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - open until the end
    return meet(arguments.rank, arguments.ranks, arguments.port)


def _bytes(module: torch.nn.Module) -> int:
    return sum(each.nbytes for each in itertools.chain(module.parameters(), module.buffers()))


def time_steps(
    runner: CudaRunner, spec: ModelSpec, batch: int, context: int, width: int = 1, *, adapters: int = 0
) -> tuple[float, int]:
    """Microseconds of one step, replayed back to back, and the width that it has."""
    admit(runner, spec, batch, context, adapters)
    decoding = tuple(range(batch))
    for step in range(4):
        runner.collect(runner.submit(StepPlan(step=2 + step, decoding=decoding, width=width)))
    loras = runner._launcher.loras  # noqa: SLF001 - as below
    adapted = loras is not None and loras.adapts(runner._batches.of(decoding)[0])  # noqa: SLF001 - as below
    launcher = runner._decoding  # noqa: SLF001 - the benchmark times what the runner launches
    key = launcher.keys.of(batch, context, special=False, width=width, adapted=adapted)
    # Else another's graph stands in, whose attention is cut differently.
    launcher.keys.stand_ins.owners.add(key)
    times = []
    with torch.inference_mode():
        launcher.run(key)
        for _ in range(REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(REPLAYS):
                launcher.run(key)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1000 / REPLAYS)
    runner._drawing.find_ring()  # noqa: SLF001 - draws that were launched beside it are not counted
    return float(statistics.median(times)), max(key.width, 1)


def load_adapters(runner: CudaRunner, count: int, rank: int) -> None:
    """Fill as many slots, all with the same random numbers, which lie in each."""
    if runner.loras is None:
        return
    numbers = (torch.randn(rank * runner.loras.layout.size) * 0.02).to(torch.bfloat16).pin_memory()
    loads = tuple(LoraLoad(bytes([slot]), slot) for slot in range(1, count + 1))
    for each in loads:
        runner.loras._weights[each.digest] = LoraWeights(rank, numbers)  # noqa: SLF001 - no file has them
    runner.collect(runner.submit(StepPlan(step=0, lora_loads=loads)))


def admit(runner: CudaRunner, spec: ModelSpec, batch: int, context: int, adapters: int = 0) -> None:
    """Give `batch` rows random tokens, scattered blocks and adapters in turn; the cache holds whatever it holds, finite."""
    noise = torch.randn(1 << 20, device="cuda")
    for pool in itertools.chain(*runner.kv.pools):
        flat = pool.view(-1)
        whole = len(flat) // len(noise) * len(noise)
        flat[:whole].view(-1, len(noise)).copy_(noise)
        flat[whole:].copy_(noise[: len(flat) - whole])
    blocks = -(-(context + 160) // BLOCK_SIZE)
    order = (torch.randperm(batch * blocks) + 1).tolist()
    generator = torch.Generator().manual_seed(1)
    admitted = []
    for row in range(batch):
        tokens = torch.randint(16, spec.vocab_size, (context,), generator=generator).tolist()
        table = tuple(order[row * blocks : (row + 1) * blocks])
        sampling = RowSampling(seed=row, temperature=0.6)
        admitted.append(
            AdmittedRow(
                row=row,
                token_ids=tuple(tokens),
                num_prompt_tokens=context,
                num_computed_tokens=context - 1,
                block_tables=(table,) * len(spec.cache_groups),
                sampling=sampling,
                max_length=context + 160,
                lora_slot=1 + row % adapters if adapters else 0,
            )
        )
    released = tuple(range(batch))
    plan = StepPlan(step=1, released=released, admitted=tuple(admitted), decoding=released)
    runner.collect(runner.submit(plan))


def print_kernels(runner: CudaRunner, batch: int, width: int, ranks: int = 1) -> None:
    """How much later each kernel of a few steps ended than the one before: with early starts kernels overlap, and this adds up to the step.

    Of several ranks the longest, too: in the first exchange of a step a rank waits for the other one's host.
    """
    decoding = tuple(range(batch))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for step in range(3):
            runner.collect(runner.submit(StepPlan(step=100 + step, decoding=decoding, width=width)))
    events = [event for event in profile.events() or [] if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.end)
    sums: dict[str, list[float]] = defaultdict(list)
    for before, event in itertools.pairwise(events):
        sums[event.name].append(event.time_range.end - before.time_range.end)
    for name, times in sorted(sums.items(), key=lambda each: -sum(each[1]))[:14]:
        longest = f" (<= {max(times):.1f})" if ranks > 1 else ""
        print(
            f"    {sum(times) / 3:9.1f} us  {len(times) // 3:4d} x {statistics.median(times):7.2f}{longest}  {name[:90]}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="shape:llama-3.2-1b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, nargs="+", default=[1000])
    parser.add_argument("--width", type=int, nargs="+", default=[1])
    parser.add_argument("--adapters", type=int, nargs="+", default=[0])
    parser.add_argument("--adapter-rank", type=int, default=16, choices=[16, 32, 64, 128])
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", "fp8"])
    parser.add_argument("--quantization", choices=["fp8", "int4"])
    parser.add_argument("--quantize-head", choices=["int8", "fp8"])
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--expert-parallel", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
