"""How long an engine takes to have other weights, from files in the page cache and from another process's GPU memory, and to have another adapter.

    python -m benchmarks.weight_updates shape:llama-3.1-8b --folder /dev/shm/weights

Writes a checkpoint of random numbers there, of the model's size, and removes it at the end. While rows decode, the longest turn beside the
reading is shown next to the longest without: what a stream waits for. Tokens and log-probabilities after an update from memory, of other
numbers than before, are compared with those after one from files of the same, bit by bit.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.sleep import ROWS, answers
from nanoserve.adapters.pytorch.models import PAGES
from nanoserve.entrypoints.bench.report import show, table, write_report
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import PauseMode, SharedTensor, WeightsFacts

NOISE = 1_000_003
"""Numbers drawn, and repeated over a checkpoint."""
SEED = 1
PIECE = 64 << 20
LONG = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True, detokenize=False)
ENDLESS = "decoding"


def noise(seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Bytes of random numbers around 0, as those of weights."""
    made = torch.randn(NOISE, generator=torch.Generator().manual_seed(seed)) * 0.02
    return made.to(dtype).view(torch.uint8)


def checkpoint_shapes(spec: ModelSpec) -> dict[str, list[int]]:
    """Every tensor of a checkpoint of the model, by its name there."""
    with torch.device("meta"):
        return {
            name: [*each.shape] for name, each in PAGES[spec.architecture](spec).checkpoint_tensors().items()
        }


def places(shapes: Mapping[str, list[int]], size: int) -> Iterator[tuple[str, list[int], int, int]]:
    """Each tensor's name and shape, and where its bytes begin and end, of numbers of `size` bytes."""
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + torch.Size(shape).numel() * size
        yield name, shape, begin, end


def write_checkpoint(
    file: pathlib.Path, shapes: Mapping[str, list[int]], dtype: torch.dtype, seed: int
) -> int:
    """Write one file whose bytes are the noise again and again; returns how many there are."""
    found = list(places(shapes, dtype.itemsize))
    code = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}[dtype]
    entries = {
        name: {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        for name, shape, begin, end in found
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    once = noise(seed, dtype).numpy().tobytes()
    total, piece = found[-1][3], PIECE // len(once) * len(once) or len(once)
    run = once * (piece // len(once))
    with file.open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.flush()
        start, handle = 8 + len(header), opened.fileno()

        def write(begin: int) -> None:
            left = memoryview(run)[: total - begin]
            while left:
                written = os.pwrite(handle, left, start + begin)
                left, begin = left[written:], begin + written

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write, range(0, total, piece)))
    return total


def train(shapes: Mapping[str, list[int]], dtype: torch.dtype, seed: int) -> None:
    """What a trainer does: have the numbers of such a file in GPU memory, say where, and keep them until the engine has read them."""
    driver = ctypes.CDLL("libcuda.so.1")
    once = noise(seed, dtype).cuda()
    tensors = {}
    for name, shape, begin, end in places(shapes, dtype.itemsize):
        flat = torch.empty(end - begin, dtype=torch.uint8, device="cuda")
        turned = once.roll(-(begin % len(once)))
        whole = len(flat) // len(once) * len(once)
        flat[:whole].view(-1, len(once)).copy_(turned)
        flat[whole:].copy_(turned[: len(flat) - whole])
        tensors[name] = flat.view(dtype).view(shape)
    torch.cuda.synchronize()
    shared = []
    for name, tensor in tensors.items():
        base, handle, place = ctypes.c_uint64(), (ctypes.c_ubyte * 64)(), ctypes.c_uint64(tensor.data_ptr())
        assert not driver.cuMemGetAddressRange_v2(ctypes.byref(base), None, place)
        assert not driver.cuIpcGetMemHandle(ctypes.byref(handle), base)
        shared.append(
            [name, [*tensor.shape], base64.b64encode(bytes(handle)).decode(), tensor.data_ptr() - base.value]
        )
    print(json.dumps(shared), flush=True)
    sys.stdin.read()


class Bench:
    """An engine whose rows decode on while weights or an adapter are read."""

    def __init__(self, parts: BenchParts) -> None:
        self.parts = parts
        self.usual: list[float] = []

    def decode(self, count: int) -> None:
        """Let rows decode until `stop`; the turns of their prompts are not looked at."""
        vocabulary = self.parts.spec.vocab_size
        for row in range(count):
            prompt = tuple([(31 * row + 7 * place) % (vocabulary - 9) + 4 for place in range(64)])
            self.parts.engine.add(
                Request(request_id=f"{ENDLESS} {row}", prompt_token_ids=prompt, sampling=LONG)
            )
        self.turns(lambda number: number < 20)
        self.usual = self.turns(lambda number: number < 50)

    def stop(self) -> None:
        """End the rows."""
        for request in list(self.parts.engine.request_ids()):
            self.parts.engine.abort(request)
        while self.parts.engine.has_work:
            self.parts.engine.turn()

    def turns(self, goes_on: Callable[[int], bool]) -> list[float]:
        """Seconds of each turn."""
        found: list[float] = []
        while goes_on(len(found)):
            began = time.perf_counter()
            self.parts.engine.turn()
            found.append(time.perf_counter() - began)
        return found

    def beside(self, work: Callable[[], Any]) -> tuple[float, list[float], Any]:
        """Seconds of some work in a thread, those of the turns meanwhile, and what it returned."""
        made: list[Any] = []
        began = time.perf_counter()

        def do() -> None:
            result = work()
            made.append((time.perf_counter() - began, result))

        thread = threading.Thread(target=do)
        thread.start()
        turns = self.turns(lambda _: thread.is_alive())
        thread.join()
        if not made:
            raise SystemExit("the reading failed; see above")
        seconds, result = made[0]
        return seconds, turns, result


def update(bench: Bench, source: Any, rows: int) -> dict[str, Any]:
    """Read while rows decode, pause, write, resume: as a trainer's orders have it done."""
    engine = bench.parts.engine
    store = engine.weight_store
    bench.decode(rows)
    read, turns, _ = bench.beside(lambda: store.read(source, anew=True, partial=False))
    complete, more, digest = bench.beside(store.complete)
    began = time.perf_counter()
    engine.pause(PauseMode.KEEP)
    steps = 0
    while engine.has_work:
        engine.turn()
        steps += 1
    paused = time.perf_counter()
    version = engine.steering.weights.version + 1
    engine.write_weights(WeightsFacts(version=version, digest=digest, label=str(version)))
    if bench.parts.facts.device == "cuda":
        torch.cuda.synchronize()
    written = time.perf_counter()
    engine.resume()
    bench.stop()
    seconds = read + complete + written - began
    return {
        "all": f"{seconds:.2f} s",
        "read, complete, pause, write": f"{read:.2f}, {complete:.2f}, {paused - began:.4f}, {written - paused:.2f} s",
        "turns until paused": str(steps),
        "turns: usual median, longest, beside the reading median, longest": _turns(bench.usual, turns + more),
    }


def update_from_trainer(bench: Bench, folder: pathlib.Path, rows: int) -> dict[str, Any]:
    """As `update`, from the GPU memory of a process that trains the shapes in the folder."""
    command = [sys.executable, "-m", "benchmarks.weight_updates", "--train", "--folder", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        found = update(bench, shared_by(trainer, bench.parts.facts.dtype), rows)
        trainer.communicate()
    return found


def _turns(usual: list[float], beside: list[float]) -> str:
    medians = [
        1e3 * each
        for kind in (usual, beside)
        for each in (statistics.median(kind or [0.0]), max(kind or [0.0]))
    ]
    return ", ".join(f"{each:.1f}" for each in medians) + " ms"


def shared_by(trainer: subprocess.Popen[bytes], dtype: str) -> tuple[SharedTensor, ...]:
    """What a trainer says of its tensors."""
    assert trainer.stdout is not None
    listed = json.loads(trainer.stdout.readline() or b"[]")
    if not listed:
        raise SystemExit("the trainer's process has ended; see above")
    return tuple(
        [
            SharedTensor(name, dtype, tuple(shape), base64.b64decode(handle), offset)
            for name, shape, handle, offset in listed
        ]
    )


def write_adapter(
    folder: pathlib.Path, shapes: Mapping[str, list[int]], rank: int, dtype: torch.dtype
) -> int:
    """A PEFT folder of every linear layer, of random numbers; returns its bytes."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": "all-linear",
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for name, shape in shapes.items():
        module, is_linear, _ = name.partition("_proj.weight")
        if is_linear and "expert" not in name:
            for half, size in (("A", [rank, shape[1]]), ("B", [shape[0], rank])):
                tensors[f"base_model.model.{module}_proj.lora_{half}.weight"] = (torch.randn(size) * 0.02).to(
                    dtype
                )
    save_file(tensors, folder / "adapter_model.safetensors")
    return sum(each.nbytes for each in tensors.values())


def load_adapter(bench: Bench, folder: pathlib.Path, number: int, rows: int) -> dict[str, str]:
    """Read an adapter while rows decode, and have its first token."""
    engine = bench.parts.engine
    bench.decode(rows)
    read, turns, facts = bench.beside(lambda: engine.read_lora(str(folder)))
    began = time.perf_counter()
    name = f"adapter {number}"
    engine.name_lora(name, facts)
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    engine.add(Request(request_id=name, prompt_token_ids=(5, 6, 7, 8), sampling=one, lora=name))
    after = bench.turns(lambda _: name in engine.request_ids())
    first = time.perf_counter() - began
    bench.stop()
    return {
        "all": f"{read + first:.3f} s",
        "read, then until the first token": f"{read:.3f}, {first:.3f} s",
        "turns: usual median, longest, beside the reading median, longest": _turns(bench.usual, turns),
        "turns until the first token": ", ".join(f"{1e3 * each:.1f}" for each in after) + " ms",
    }


def main() -> None:
    """Measure, print and write."""
    arguments = _arguments()
    given = {
        name: getattr(arguments, name)
        for name in ("model", "device", "dtype", "max_model_len", "kv_memory", "tensor_parallel_size")
    }
    given |= {"max_loras": 2, "max_lora_rank": arguments.rank} if arguments.rank else {}
    settings = read_configuration(given, os.environ).engine
    parts = assemble_bench(settings)
    shapes, dtype = checkpoint_shapes(parts.spec), getattr(torch, parts.facts.dtype)
    bench, rows = Bench(parts), arguments.rows
    folder = arguments.folder / "nanoserve-weights"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report: dict[str, Any] = {}

    def note(what: str, found: Mapping[str, str]) -> None:
        report[what] = dict(found)
        show(table([what, ""], list(found.items())))
        sys.stdout.flush()

    try:
        began = time.perf_counter()
        size = write_checkpoint(folder / "model.safetensors", shapes, dtype, SEED)
        note("checkpoint", {"GB": f"{size / 1e9:.2f}", "written in": f"{time.perf_counter() - began:.1f} s"})
        for each in range(2 if arguments.rank else 0):
            if not each:
                size = write_adapter(folder / "adapter", shapes, arguments.rank, dtype)
            note(f"adapter of {size / 1e6:.0f} MB", load_adapter(bench, folder / "adapter", each, rows))
        before, texts = answers(parts), {}
        for number in range(1, arguments.cycles + 1):
            if parts.facts.device == "cuda":
                (folder / "shapes.json").write_text(json.dumps([parts.facts.dtype, shapes]))
                note(f"memory, {number}", update_from_trainer(bench, folder, rows))
                texts[f"memory, {number}"] = answers(parts)
            note(f"files, {number}", update(bench, str(folder), rows))
            texts[f"files, {number}"] = answers(parts)
        last = [before, *texts.values()][-1]
        equal = {
            name: "equal" if each == last else "different"
            for name, each in [("before", before), *texts.items()]
        }
        note("answers beside the last", equal)
    finally:
        shutil.rmtree(folder)
    write_report(arguments.json, {"benchmark": "weight_updates", "report": report})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder or a shape; the built-in model if left out")
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        required=True,
        help="where a checkpoint can be written, such as /dev/shm",
    )
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rank", type=int, default=16, help="of the adapter; 0 for none")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--kv-memory", default="4GiB", help="what is left is for the trainer")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    if _arguments().train:
        name, shapes = json.loads((_arguments().folder / "shapes.json").read_text())
        train(shapes, getattr(torch, name), SEED)
    else:
        main()
