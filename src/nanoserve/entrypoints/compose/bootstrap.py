"""The composition root: the only file that knows which adapter stands behind which port.

The adapters that load torch are imported inside the functions that need them, after the process is prepared for
them; importing this module is cheap.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.engine_process.wire.codec import MsgpackWire
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.generation_config import read_generation_defaults
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.system.environment import environment
from nanoserve.adapters.system.process import SystemClock, keep_freed_memory, wake_gpu
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.engine import Engine
from nanoserve.domain.kv.laws import pool_needs
from nanoserve.entrypoints.compose.assembly import (
    Assembly,
    BenchParts,
    Ceilings,
    Defaults,
    KernelTime,
    Survey,
    TextParts,
    VerificationParts,
)
from nanoserve.entrypoints.compose.choices import (
    choose_depth,
    choose_device,
    choose_dtype,
    choose_model_length,
    choose_sizes,
    choose_threads,
    make_limits,
    user_chose_threads,
)
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.entrypoints.compose.process import prepare_process
from nanoserve.entrypoints.compose.shapes import find_shape, is_shape, refuse_shape
from nanoserve.entrypoints.compose.stopwatch import Stopwatch
from nanoserve.ports.driven import Clock, ModelRunner, Tokenizer, TraceFormat
from nanoserve.ports.engine_facts import EngineFacts, EngineSizes
from nanoserve.ports.engine_wire import EngineWire

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.memory import MemoryBudget, PoolRequest
    from nanoserve.adapters.pytorch.models import DecoderModel

__all__ = [
    "assemble",
    "assemble_bench",
    "assemble_for_verification",
    "assemble_text",
    "clock",
    "engine_wire",
    "environment",
    "find_model",
    "local_defaults",
    "preload",
    "survey",
    "trace_format",
]


def assemble(settings: EngineSettings, watch: Stopwatch | None = None) -> Assembly:
    """Load a model and build an engine around it; `watch` times the start.

    Raises `ModelLoadError`, `OutOfMemoryError`, or `BadValueError` for settings that contradict each other.
    """
    refuse_shape(settings.model, "generate text")
    watch = watch or Stopwatch()
    return _assemble(settings, _load(settings, survey(settings, watch), watch), watch)


def preload() -> None:
    """Import all that `assemble` needs, without touching a device, so that a process can wait to become an engine."""
    prepare_process()
    from nanoserve.adapters.pytorch import memory, models, runner, threads  # noqa: F401, PLC0415 - loads torch

    with contextlib.suppress(ImportError):  # without Triton there is no GPU to compute on
        from nanoserve.adapters.pytorch.cuda import building  # noqa: F401, PLC0415 - loads torch and Triton


def assemble_for_verification(settings: EngineSettings) -> VerificationParts:
    """As `assemble`, with the model laid open and transformers' own implementation beside it.

    The layers are observed on the CPU: beside an engine on a GPU, in a second copy of the model.
    """
    refuse_shape(settings.model, "be compared with transformers")
    found = survey(settings)
    loaded = _load(settings, found)
    assert found.folder is not None
    assembly = _assemble(settings, loaded, Stopwatch())
    if found.device != "cpu":
        loaded = _load(settings, attrs.evolve(found, device="cpu"))
    from nanoserve.adapters.huggingface.reference_model import HFReferenceModel  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.observation import ObservedModel  # noqa: PLC0415 - loads torch

    return VerificationParts(
        assembly=assembly,
        ours=ObservedModel(loaded.model, dtype=found.dtype).activations,
        reference=HFReferenceModel(found.folder),
    )


def assemble_bench(settings: EngineSettings, watch: Stopwatch | None = None) -> BenchParts:
    """An engine without tokenizer, over a model's own weights or random ones of a shape; `watch` times its start."""
    watch = watch or Stopwatch()
    found = survey(settings, watch)
    loaded = _load(settings, found, watch)
    from nanoserve.adapters.pytorch.devices import DTYPES  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.profiling import measure_ceilings, profile  # noqa: PLC0415 - loads torch

    def profiled(work: Callable[[], object]) -> Sequence[KernelTime]:
        return [KernelTime(*each) for each in profile(work, device=found.device)]

    def ceilings() -> Ceilings | None:
        return Ceilings(*measure_ceilings(DTYPES[found.dtype])) if found.device == "cuda" else None

    runner, facts = _build_runner(settings, loaded, watch)
    return BenchParts(
        engine=_build_engine(settings, loaded, runner, facts, tokenizer=None),
        spec=found.spec,
        facts=facts,
        element_bytes=DTYPES[found.dtype].itemsize,
        profile=profiled,
        measure_ceilings=ceilings,
    )


def assemble_text(folder: str) -> TextParts:
    """The tokenizer, the template and the defaults of the model in a folder. Raises `ModelLoadError`."""
    prepare_process()
    spec = read_spec(folder)
    tokenizer = HFTokenizer(folder)
    return TextParts(
        tokenizer=tokenizer,
        tokenizer_facts=tokenizer.facts,
        template=HFChatTemplate(tokenizer),
        eos_token_ids=spec.eos_token_ids,
        defaults=_read_defaults(folder),
    )


def find_model(settings: EngineSettings) -> str:
    """The folder of a model, downloaded first if it must be. Raises `ModelLoadError`."""
    refuse_shape(settings.model, "be served")
    return _find_folder(settings)


def clock() -> Clock:
    """The clock that every part of a process reads."""
    return SystemClock()


def engine_wire() -> EngineWire:
    """The form in which an engine in another process is talked to."""
    return MsgpackWire()


def trace_format() -> TraceFormat:
    """The form in which a step log is written."""
    return JsonTraceFormat()


def local_defaults(model: str | None) -> Defaults | None:
    """The sampling defaults of a model whose files are here already; None for one on the hub."""
    folder = model_folder() if model is None else pathlib.Path(model).expanduser()
    return _read_defaults(str(folder)) if folder.is_dir() else None


def survey(settings: EngineSettings, watch: Stopwatch | None = None) -> Survey:
    """Find a model and decide where and in which numbers it is computed, without loading its weights.

    Raises `ModelLoadError` or `BadValueError`.
    """
    watch = watch or Stopwatch()
    shape = find_shape(settings.model) if settings.model is not None and is_shape(settings.model) else None
    prepare_process()
    folder = None
    if shape is None:
        folder = _find_folder(settings)
        shape = read_spec(folder)
    if settings.device != "cpu" and "torch" not in sys.modules:
        wake_gpu()
    from nanoserve.adapters.pytorch.devices import why_no_gpu  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.models import build_model  # noqa: F401, PLC0415 - its time belongs to the imports

    watch.lap("imports")
    device = choose_device(settings, why_no_gpu)
    watch.lap("device")
    return Survey(spec=shape, folder=folder, device=device, dtype=choose_dtype(settings, shape, device))


@attrs.frozen(eq=False)
class _Loaded:
    """A model in memory, and how it is computed."""

    found: Survey
    sizes: EngineSizes
    threads: int
    model: DecoderModel


def _load(settings: EngineSettings, found: Survey, watch: Stopwatch | None = None) -> _Loaded:
    watch = watch or Stopwatch()
    from nanoserve.adapters.pytorch import devices  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.models import build_model, build_random_model  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.threads import decode_seconds, fastest_threads  # noqa: PLC0415 - loads torch

    sizes = choose_sizes(settings, found.spec, found.device)
    threads = devices.set_threads(choose_threads(settings))
    dtype, device = devices.DTYPES[found.dtype], devices.DEVICES[found.device]
    quantization = settings.quantization
    if found.folder is None:
        model = build_random_model(found.spec, dtype=dtype, device=device, seed=0, quantization=quantization)
    else:
        model = build_model(found.spec, found.folder, dtype=dtype, device=device, quantization=quantization)
    keep_freed_memory()
    watch.lap("weights")
    if found.device == "cpu" and not user_chose_threads(settings):
        threads = fastest_threads(threads, decode_seconds(model, dtype))
        watch.lap("choice of threads")
    return _Loaded(found, sizes, devices.set_threads(threads), model)


def _find_folder(settings: EngineSettings) -> str:
    """Where the model's files are; found before anything slow is imported, because names are often mistyped."""
    if settings.model is None:
        return str(model_folder())
    from nanoserve.adapters.huggingface.hub import resolve_model  # noqa: PLC0415 - not needed for the built-in model

    return resolve_model(settings.model, revision=settings.revision, progress=sys.stderr.isatty())


def _assemble(settings: EngineSettings, loaded: _Loaded, watch: Stopwatch) -> Assembly:
    folder = loaded.found.folder
    assert folder is not None
    tokenizer = HFTokenizer(folder)
    watch.lap("tokenizer")
    runner, facts = _build_runner(settings, loaded, watch)
    return Assembly(
        folder=folder,
        engine=_build_engine(settings, loaded, runner, facts, tokenizer),
        tokenizer=tokenizer,
        template=HFChatTemplate(tokenizer),
        spec=loaded.found.spec,
        defaults=_read_defaults(folder),
        facts=facts,
    )


@attrs.frozen
class _Built:
    """A runner, the sizes that it was built for, where its memory went, and seconds of its start by name."""

    runner: ModelRunner[Any]
    sizes: EngineSizes
    memory: MemoryBudget
    phases: Mapping[str, float] = attrs.field(factory=dict)


def _build_runner(
    settings: EngineSettings, loaded: _Loaded, watch: Stopwatch
) -> tuple[ModelRunner[Any], EngineFacts]:
    """The runner of the device, for the longest sequences that fit beside the weights."""
    found = loaded.found
    build = _build_gpu_runner if found.device == "cuda" else _build_cpu_runner

    def fits(max_model_len: int) -> _Built:
        return build(settings, loaded, attrs.evolve(loaded.sizes, max_model_len=max_model_len))

    built = choose_model_length(settings, found.spec, fits)
    watch.lap_as(built.phases, rest="runner and KV pool")
    facts = EngineFacts(
        **built.sizes.sizes(),
        pid=os.getpid(),
        model=settings.model or "built-in",
        device=found.device,
        dtype=found.dtype,
        threads=loaded.threads,
        depth=choose_depth(settings, found.device),
        kv_bytes=built.memory.kv,
        memory=_shares(built.memory) if found.device == "cuda" else {},
    )
    return built.runner, facts


def _shares(memory: MemoryBudget) -> dict[str, int]:
    """A GPU's memory by what it is for."""
    return {
        "weights": memory.weights,
        "workspace": memory.workspace,
        "sampler": memory.sampler,
        "reserve": memory.reserve,
        "KV cache": memory.kv,
        "left free": memory.available - memory.sampler - memory.reserve - memory.kv,
    }


def _pools(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> PoolRequest:
    from nanoserve.adapters.pytorch.memory import PoolRequest  # noqa: PLC0415 - loads torch

    needs = pool_needs(
        loaded.found.spec.cache_groups,
        block_size=sizes.block_size,
        max_model_len=sizes.max_model_len,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
    )
    return PoolRequest(needs=needs, num_blocks=settings.num_kv_blocks, memory=settings.kv_memory)


def _build_cpu_runner(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> _Built:
    from nanoserve.adapters.pytorch.devices import DTYPES  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.memory import plan_memory  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.runner import TorchRunner  # noqa: PLC0415 - loads torch

    found, pools = loaded.found, _pools(settings, loaded, sizes)
    memory = plan_memory(found.spec, sizes, pools, dtype=DTYPES[found.dtype])
    sizes = attrs.evolve(sizes, num_blocks=memory.num_blocks)
    return _Built(TorchRunner(loaded.model, sizes), sizes, memory)


def _build_gpu_runner(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> _Built:
    from nanoserve.adapters.pytorch.cuda.building import build_runner  # noqa: PLC0415 - needs a GPU

    runner, memory = build_runner(
        loaded.model,
        sizes,
        _pools(settings, loaded, sizes),
        deterministic=settings.deterministic,
        enforce_eager=settings.enforce_eager,
    )
    return _Built(runner, attrs.evolve(sizes, num_blocks=memory.num_blocks), memory, runner.start_phases)


def _build_engine(
    settings: EngineSettings,
    loaded: _Loaded,
    runner: ModelRunner[Any],
    facts: EngineFacts,
    tokenizer: Tokenizer | None,
) -> Engine[Any]:
    return Engine(
        limits=make_limits(settings, facts),
        cache_groups=loaded.found.spec.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=tokenizer,
        depth=facts.depth,
        paranoid=settings.paranoid,
    )


def _read_defaults(folder: str) -> Defaults:
    found = read_generation_defaults(folder)
    return Defaults(values=found.values, origin=found.origin)
