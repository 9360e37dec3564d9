"""A head that drafts, on a GPU, beside no drafts: tokens per second of one engine, and what each part of a step takes.

    python -m benchmarks.draft_heads [--model shape:llama-3.1-8b] [--batch 1 8 64] [--width 4] [--agreement 0.767] [--context 128] [--tokens 256]

Nothing here has learned anything, so what agrees is scripted: the model's embedding and head are turned so that each token is followed by the
next id, and behind the head's own drafts, which are computed in full, a kernel writes the right token with a chance of `--agreement`
and a wrong one otherwise. With 0.767 a step of 4 tokens yields 2.8 on average. Every answer is checked to count upwards.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.draft_head import GpuDraftHead
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.devices import default_dtype
from nanoserve.adapters.pytorch.models import DecoderModel, build_random_model
from nanoserve.adapters.pytorch.models.eagle import EagleHead
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.model_spec import DraftSpec, ModelSpec
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

BLOCK_SIZE = 16
DRAFT_VOCAB = 32_000
QUIET = 0.01
"""By which what layers add is divided down, so that a token's own vector decides what follows it."""
REPLAYS = 20


@triton.jit
def script_kernel(  # type: ignore[no-untyped-def] # noqa: ANN201, PLR0917 - Triton reads annotations
    tokens_ptr, tokens_stride, lengths_ptr, takes_drafts_ptr, rows_ptr, vocab, chance, COUNT: tl.constexpr  # noqa: ANN001, N803
):  # fmt: skip
    """Program b: COUNT drafts behind row b of the batch, each right with a chance of so many in 65,536."""
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    if tl.load(takes_drafts_ptr + row) == 1:
        length = tl.load(lengths_ptr + row)
        newest = tl.load(tokens_ptr + row * tokens_stride + length - 1)
        for ahead in range(COUNT):
            word = ((row * 977 + length + ahead) * 2654435761) & 0xFFFFFFFF
            word = ((word ^ (word >> 15)) * 2246822519) & 0xFFFFFFFF
            wrong = ((word >> 13) & 0xFFFF) >= chance
            draft = (newest + 1 + ahead + wrong.to(tl.int32)) % vocab
            tl.store(tokens_ptr + row * tokens_stride + length + ahead, draft.to(tl.int32))


def scripted(propose: Callable[..., None], vocab_size: int, agreement: float) -> Callable[..., None]:
    """The head's drafts, and then those of the script."""

    def both(head: GpuDraftHead, *, batch_rows: Tensor, width: int, **how: Any) -> None:
        propose(head, batch_rows=batch_rows, width=width, **how)
        arena = head._arena  # noqa: SLF001 - it stands in the head's place
        script_kernel[(len(batch_rows),)](
            arena.tokens, arena.tokens.stride(0), arena.lengths, arena.takes_drafts, batch_rows, vocab_size,
            round(agreement * 65536), COUNT=width - 1,
        )  # fmt: skip

    return both


@torch.inference_mode()
def make_counting_model(spec: ModelSpec, **form: Any) -> DecoderModel:
    """A model in which each token is followed by the next id: `build_random_model`, with embedding and head turned."""
    model = build_random_model(spec, **form)
    for parts in model.layers:
        for product in (each for part in parts for each in part.products() if each.added):
            product.linear.weight.mul_(QUIET)
    model.embedding.weight.normal_()
    model.head.weight = torch.nn.Parameter(model.embedding.weight.roll(1, 0), requires_grad=False)
    return model


@torch.inference_mode()
def make_model(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> DecoderModel:
    """A model that counts, and a head of random weights."""
    model = make_counting_model(spec, dtype=dtype, device=device, seed=0)
    with device, default_dtype(dtype):
        head = EagleHead(model)
    for name, weight in head.named_parameters():
        if not name.startswith("embedding"):
            weight.fill_(1) if "norm" in name else weight.normal_(std=0.02)
    model.draft_head = head
    return model


def with_head(spec: ModelSpec) -> ModelSpec:
    """A shape, and a head as those that are published for it."""
    count = spec.num_layers
    draft = DraftSpec(
        layer=spec.layers[0],
        hidden_size=spec.hidden_size,
        vocab_size=min(DRAFT_VOCAB, spec.vocab_size),
        norm=spec.norm,
        taps=(min(2, count), count // 2, max(count - 3, 0)),
    )
    return attrs.evolve(spec, draft=draft, tied_embeddings=False)


def run_engine(
    runner: CudaRunner, limits: Limits, spec: ModelSpec, *, batch: int, context: int, tokens: int
) -> str:
    """Serve so many requests at once; tokens per second of all of it, and from the first token of the last one on."""
    engine = Engine(
        limits=limits, cache_groups=spec.cache_groups, runner=runner, clock=SystemClock(), depth=2
    )
    prompts = torch.randint(
        16, spec.vocab_size // 2, (batch, context), generator=torch.Generator().manual_seed(batch)
    ).tolist()
    params = SamplingParams(temperature=0.6, max_tokens=tokens)
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        answers[str(number)] = []
        engine.add(
            Request(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=params, seed=number)
        )
    begin, all_decode, before = time.perf_counter(), 0.0, 0
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated):
                assert event.error is None, event.error
                answers[event.request_id].extend(event.token_ids)
        if not all_decode and all(answers.values()):
            all_decode, before = time.perf_counter(), sum(map(len, answers.values()))
    end, total = time.perf_counter(), sum(map(len, answers.values()))
    wrong = sum(
        answers[str(number)] != [(prompt[-1] + 1 + ahead) % spec.vocab_size for ahead in range(tokens)]
        for number, prompt in enumerate(prompts)
    )
    state = engine.state()
    length = 1 + state.accepted_tokens / max(state.drafted_rows, 1)
    return (
        f"{total / (end - begin):8.0f} tok/s, decoding {(total - before) / (end - all_decode):8.0f}, "
        f"{state.steps} steps, {length:.2f} tokens a step and row, {wrong} answers wrong"
    )


def microseconds(runner: CudaRunner, launch: Callable[[], object]) -> float:
    """What a launch takes as a captured graph, replayed back to back."""
    graphs = runner._decoding._graphs  # noqa: SLF001 - the benchmark times what the runner launches
    assert graphs is not None
    key = ("timed", id(launch))
    launch()
    graphs.capture(key, launch)
    times = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(REPLAYS):
            graphs.replay(key)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / REPLAYS)
    return float(statistics.median(times))


@torch.inference_mode()
def time_parts(runner: CudaRunner, batch: int, width: int) -> str:
    """Of a step over padded places: the model at this width and narrow, and the head's two parts."""
    decoding, launcher = runner._decoding, runner._launcher  # noqa: SLF001 - as above
    key = decoding.keys.of(batch, 512, special=False, width=width)
    places, head = decoding.sink_places[: key.places], launcher.head
    assert head is not None
    how: dict[str, Any] = {"splits": key.splits, "width": key.width}
    times = {
        "propose": lambda: decoding.propose(batch_rows=places, pdl=False, **how),
        "learn": lambda: head.learn(places, **how),
        f"model, width {key.width}": lambda: launcher.decode(places, pdl=decoding._pdl, **how),  # noqa: SLF001
        "model, narrow": lambda: launcher.decode(places, splits=key.splits, pdl=decoding._pdl),  # noqa: SLF001
    }
    return ", ".join(f"{name} {microseconds(runner, launch):.0f} us" for name, launch in times.items())


def main() -> None:
    """Build once; then each batch with drafts, and without the head at all."""
    arguments = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    spec = with_head(find_shape(arguments.model))
    batch, length = max(arguments.batch), arguments.context + arguments.tokens + 2 * arguments.width
    limits = Limits(
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch * arguments.width),
        max_model_len=length,
        vocab_size=spec.vocab_size,
        block_size=BLOCK_SIZE,
        num_blocks=(-(-length // BLOCK_SIZE) + 1) * batch,
        max_width=arguments.width,
        prefix_caching=False,
    )
    script = scripted(GpuDraftHead.propose, spec.vocab_size, arguments.agreement)
    began = time.perf_counter()
    with mock.patch.object(GpuDraftHead, "propose", script):
        runner, _ = build_runner(make_model(spec, device, dtype), limits)
        if device.type == "cuda":
            print(torch.cuda.get_device_name())
        print(f"ready after {time.perf_counter() - began:.1f} s", flush=True)
        sizes: dict[str, Any] = {"context": arguments.context, "tokens": arguments.tokens}
        for size in arguments.batch:
            for run in range(2):
                result = run_engine(runner, limits, spec, batch=size, **sizes)
                print(f"{size:3d} rows, drafts, run {run}: {result}", flush=True)
        if device.type == "cuda":
            for size in arguments.batch:
                print(f"{size:3d} rows: {time_parts(runner, size, arguments.width)}", flush=True)
    for launcher in (runner._launcher, runner._decoding._rehearsal):  # noqa: SLF001 - from here on there is no head
        launcher.head = None
    if (graphs := runner._decoding._graphs) is not None:  # noqa: SLF001 - as above
        graphs.drop()
    narrow = attrs.evolve(limits, max_width=1)
    for size in arguments.batch:
        for run in range(2):
            result = run_engine(runner, narrow, spec, batch=size, **sizes)
            print(f"{size:3d} rows, none, run {run}: {result}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--agreement", type=float, default=0.767)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    main()
