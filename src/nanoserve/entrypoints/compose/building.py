"""The half of the composition that loads torch: a model in memory, a runner of its device, an engine over both.

`bootstrap` imports it where something is computed, once the process is prepared for torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import structlog

from nanoserve.adapters.engine_process.ranks.follower import MakeRunner
from nanoserve.adapters.engine_process.ranks.leader import LeadingRunner
from nanoserve.adapters.engine_process.wire.plans import Build
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.generation_config import read_sampling_defaults
from nanoserve.adapters.huggingface.pooler import choose_pooler
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.llguidance.crew import Worker, start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.adapters.pytorch import devices
from nanoserve.adapters.pytorch.cuda.virtual_memory import VirtualMemory, virtual_memories
from nanoserve.adapters.pytorch.memory import (
    CPU_KV_BYTES,
    MemoryBudget,
    PoolRequest,
    available_memory,
    plan_memory,
)
from nanoserve.adapters.pytorch.models import DecoderModel, build_model, build_random_model
from nanoserve.adapters.pytorch.observation import ObservedModel
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.parallel.gloo import GlooRanks
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.adapters.pytorch.sleeping import HostMemory, host_memories
from nanoserve.adapters.pytorch.threads import decode_seconds, fastest_threads, guess_costs, step_costs
from nanoserve.adapters.pytorch.told import told_products
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.adapters.pytorch.weights.checkpoint import check_embedding
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf
from nanoserve.adapters.pytorch.weights.keeping import kept_bytes
from nanoserve.adapters.system.process import SystemClock, keep_freed_memory
from nanoserve.domain.engine import Engine
from nanoserve.domain.kv.kinds import pool_needs
from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.entrypoints.compose import choices
from nanoserve.entrypoints.compose.assembly import Assembly, BenchParts, Survey, VerificationParts
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.kinds import named_loras
from nanoserve.entrypoints.compose.group import RankGroup, start_group
from nanoserve.entrypoints.compose.log import log_failed_step
from nanoserve.entrypoints.compose.offload import count_slots, open_directory, open_kv_events
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.engine_facts import EngineFacts, EngineSizes
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.grammar import Grammars
from nanoserve.ports.kv import KVEventPublisher
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.steering import KV_CACHE, WEIGHTS

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
    from nanoserve.adapters.pytorch.cuda.tuner import Finding

Runner: TypeAlias = "TorchRunner | CudaRunner | LeadingRunner[Any]"
_Built: TypeAlias = tuple[Runner, EngineSizes, MemoryBudget]
"""With the sizes that it was built for, and where its memory went."""


def survey_device(settings: EngineSettings, spec: ModelSpec, folder: str | None) -> Survey:
    """Decide where a model is computed, and in which numbers. Raises `BadValueError` or `ModelLoadError`."""
    if folder is not None:
        check_embedding(folder, spec.vocab_size, spec.hidden_size)
    device = choices.choose_device(settings, devices.why_no_gpu, devices.count_gpus)
    kept = choices.choose_kept(settings, spec, devices.why_no_float8 if device == "cuda" else lambda: None)
    return Survey(spec=kept, folder=folder, device=device, dtype=choices.choose_dtype(settings, spec, device))


def build_assembly(settings: EngineSettings, found: Survey, watch: Stopwatch) -> Assembly:
    """An engine over a model's own weights, with its tokenizer."""
    from_gguf = found.folder is not None and is_gguf(Path(found.folder))
    choices.check_spare(settings, found.spec, found.device, is_gguf=from_gguf)
    kv_events = open_kv_events(settings, found.spec)
    group = start_group(settings, found)
    tokenizer = _tokenizer(found, watch)
    loaded = _load_all(settings, found, watch, group)
    grammars = _grammars(tokenizer, found.spec)
    return _assemble(settings, loaded, tokenizer, grammars=grammars, kv_events=kv_events)


def build_verification(settings: EngineSettings, found: Survey) -> VerificationParts:
    """An engine with its model laid open and transformers' own implementation beside it.

    The layers are observed on the CPU: beside an engine on a GPU or one of several processes, in a second copy of the model.
    """
    from nanoserve.adapters.huggingface.reference_model import HFReferenceModel  # noqa: PLC0415 - loads transformers

    watch = Stopwatch()
    group = start_group(settings, found)
    tokenizer = _tokenizer(found, watch)
    loaded = _load_all(settings, found, watch, group)
    assembly = _assemble(settings, loaded, tokenizer)
    if found.device != "cpu" or group is not None:
        loaded = _load(settings, attrs.evolve(found, device="cpu"), watch)
    return VerificationParts(
        assembly=assembly,
        ours=ObservedModel(loaded.model, dtype=found.dtype).activations,
        reference=HFReferenceModel(assembly.folder),
    )


def build_bench(settings: EngineSettings, found: Survey, watch: Stopwatch) -> BenchParts:
    """An engine without tokenizer, over a model's own weights or random ones of a shape."""
    loaded = _load_all(settings, found, watch, start_group(settings, found))
    runner, facts = _build_runner(settings, loaded)
    engine = _build_engine(settings, loaded, runner, facts, tokenizer=None)
    return BenchParts(engine=engine, spec=found.spec, facts=facts)


def tune_products(settings: EngineSettings, found: Survey, *how: Any) -> tuple[Path, list[Finding]]:
    """Measure a model's products on the GPU; see `tile_tables.tune_into`."""
    from nanoserve.adapters.pytorch.cuda.tile_tables import tune_into  # noqa: PLC0415 - needs a GPU

    return tune_into(_load(settings, found, Stopwatch()).model, *how)


def load_part(settings: EngineSettings, found: Survey, rank: int) -> tuple[int, MakeRunner]:
    """The part of a rank other than the first: the bytes free beside it, and the function that makes its runner when all ranks have met."""
    communicator = GlooRanks(rank, settings.tensor_parallel_size)
    loaded = _load(settings, found, Stopwatch(), communicator)

    def make(build: Build) -> tuple[TorchRunner | CudaRunner, ModelWeights]:
        what = loaded.model, found.folder, settings.quantization
        if found.device == "cuda":
            others: Any = {"ranks": communicator, "meet": lambda _: communicator.meet(build.port)}
            weights = ModelWeights(*what, memories=loaded.memories)
            return _make_gpu_runner(settings, loaded, build.sizes, None, **others)[0], weights
        made = TorchRunner(loaded.model, build.sizes, NGramDrafter())
        communicator.meet(build.port)
        return made, ModelWeights(*what, memories=host_memories(loaded.model, made.kv))

    return available_memory(devices.DEVICES[found.device]), make


@attrs.frozen(eq=False)
class _Loaded:
    """A model in memory and its way of computing, and the watch of its start; the first rank's part if the model is split.

    Attributes:
        available: bytes for this part: where the ranks share a memory, its part of that; else what the rank with the least has.
        step_seconds, guess_seconds: as in `Limits`.
    """

    found: Survey
    sizes: EngineSizes
    threads: int
    model: DecoderModel
    watch: Stopwatch
    memories: Mapping[str, VirtualMemory] | None = None
    step_seconds: tuple[tuple[int, float], ...] = ()
    guess_seconds: tuple[tuple[int, float], ...] = ()
    group: RankGroup | None = None
    available: int | None = None


def _load_all(settings: EngineSettings, found: Survey, watch: Stopwatch, group: RankGroup | None) -> _Loaded:
    """A model, or this rank's part of it, when the others have loaded theirs, too."""
    if group is None:
        return _load(settings, found, watch)
    loaded = _load(settings, found, watch, group.communicator)
    free = min(*group.others.loaded(), available_memory(devices.DEVICES[found.device]))
    watch.lap("other ranks")
    sharing = settings.tensor_parallel_size if found.device == "cpu" else 1
    return attrs.evolve(loaded, group=group, available=free // sharing)


def _load(settings: EngineSettings, found: Survey, watch: Stopwatch, ranks: Communicator = ALONE) -> _Loaded:
    sizes = choices.choose_sizes(settings, found.spec, found.device, devices.gpu_memory(found.device))
    sizes = attrs.evolve(sizes, host_slots=count_slots(settings, found), num_blocks=found.parked)
    found = attrs.evolve(found, spec=found.spec.for_length(sizes.max_model_len))
    threads = devices.set_threads(choices.choose_threads(settings))
    dtype, device = devices.DTYPES[found.dtype], devices.DEVICES[found.device]
    form: Any = {"dtype": dtype, "device": device, "quantization": settings.quantization, "ranks": ranks}
    form["quantize_head"] = settings.quantize_head
    form["expert_parallel"] = settings.expert_parallel and ranks.size > 1
    is_even = sizes.block_size % ranks.size == 0
    form["deals_latents"] = found.device == "cpu" and is_even and not settings.deterministic
    bare = bool(found.parked) and found.device == "cuda"
    memories = virtual_memories(device, bare=bare) if found.device == "cuda" else None
    if memories is not None:
        form["take"] = memories[WEIGHTS].take
    if found.folder is None:
        model = build_random_model(found.spec, seed=0, **form)
    else:
        model = build_model(found.spec, found.folder, **form, read=not bare, draft=found.draft)
        if model.spec.tied_embeddings != found.spec.tied_embeddings:
            structlog.get_logger().warning(
                "computing with the checkpoint's own lm_head, though config.json ties it to the embedding"
            )
    model.is_invariant = settings.deterministic and found.device == "cpu"
    keep_freed_memory()
    watch.lap("weights")
    if found.device == "cpu" and ranks.size == 1 and not choices.user_chose_threads(settings):
        threads = fastest_threads(threads, decode_seconds(model, dtype))
        watch.lap("choice of threads")
    threads = devices.set_threads(threads)
    measured = found.device == "cpu" and settings.speculate == "auto" and sizes.max_width > 1
    costs, guesses = (step_costs(model, dtype), guess_costs(model, dtype)) if measured else ((), ())
    if costs:
        watch.lap("cost of wide steps")
    return _Loaded(found, sizes, threads, model, watch, memories, costs, guesses)


def _tokenizer(found: Survey, watch: Stopwatch) -> HFTokenizer:
    """Read before the weights, which take longer: a folder may have none."""
    assert found.folder is not None
    tokenizer = HFTokenizer(found.folder)
    watch.lap("tokenizer")
    return tokenizer


def _grammars(tokenizer: HFTokenizer, spec: ModelSpec) -> LLGrammars | None:
    """Grammars over a tokenizer; None if no answer can be made to follow one."""
    ends = (*spec.eos_token_ids, *tokenizer.eos_token_ids)
    if not ends or spec.encoder is not None:
        return None
    count, num_tokens = choices.mask_workers(), min(tokenizer.vocab_size, spec.vocab_size)

    def start() -> list[Worker]:
        return start_workers(Settings(tokenizer.description, ends, spec.vocab_size, num_tokens), count)

    return LLGrammars(start, workers=count)


def _assemble(
    settings: EngineSettings,
    loaded: _Loaded,
    tokenizer: HFTokenizer,
    *,
    grammars: LLGrammars | None = None,
    kv_events: KVEventPublisher | None = None,
) -> Assembly:
    runner, facts = _build_runner(settings, loaded)
    return Assembly(
        folder=tokenizer.folder,
        engine=_build_engine(
            settings, loaded, runner, facts, tokenizer=tokenizer, grammars=grammars, kv_events=kv_events
        ),
        tokenizer=tokenizer,
        template=HFChatTemplate(tokenizer),
        spec=loaded.found.spec,
        defaults=read_sampling_defaults(tokenizer.folder),
        facts=facts,
        dialect_facts=tokenizer.dialect_facts,
        pooler=choose_pooler(settings.task, tokenizer, loaded.found.spec.hidden_size),
        grammars=grammars,
    )


def _build_runner(settings: EngineSettings, loaded: _Loaded) -> tuple[Runner, EngineFacts]:
    """The runner of the device, for the longest sequences that fit beside the weights, and the other ranks behind it."""
    found = loaded.found
    build = _build_gpu_runner if found.device == "cuda" else _build_cpu_runner

    def fits(max_model_len: int) -> _Built:
        return build(settings, loaded, attrs.evolve(loaded.sizes, max_model_len=max_model_len))

    runner, sizes, memory = choices.choose_model_length(settings, found.spec, fits)
    if loaded.group is not None:
        runner = loaded.group.lead(runner, is_watchful=settings.paranoid, launches=found.device == "cuda")
    loaded.watch.lap("runner and KV pool")
    facts = EngineFacts(
        **sizes.sizes(),
        pid=os.getpid(),
        model=settings.model or "built-in",
        device=found.device,
        dtype=found.dtype,
        threads=loaded.threads,
        tensor_parallel_size=settings.tensor_parallel_size,
        depth=choices.choose_depth(settings, found.device),
        loras=tuple(named_loras(settings.lora)),
        kv_bytes=memory.kv * settings.tensor_parallel_size,
        memory=memory.shares(kept_bytes(loaded.model)) if found.device == "cuda" else {},
        products=told_products(loaded.model, invariant=settings.deterministic),
    )
    return runner, facts


def _pools(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> PoolRequest | None:
    """None if the sizes say it."""
    if loaded.found.parked:
        return None
    needs = pool_needs(
        loaded.found.spec.cache_groups,
        block_size=sizes.block_size,
        max_model_len=sizes.max_model_len,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
    )
    memory = settings.kv_memory
    if isinstance(memory, int):
        memory //= settings.tensor_parallel_size
    return PoolRequest(needs=needs, num_blocks=settings.num_kv_blocks, memory=memory)


def _build_cpu_runner(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> _Built:
    dtype, pools = devices.DTYPES[loaded.found.dtype], _pools(settings, loaded, sizes)
    available = available_memory(devices.CPU) if loaded.available is None else loaded.available
    what: Any = {"dtype": dtype, "available": available, "beside": bool(loaded.found.parked)}
    memory = plan_memory(loaded.model.spec, sizes, pools, usual_bytes=CPU_KV_BYTES, keeps_rows=True, **what)
    sizes = attrs.evolve(sizes, num_blocks=memory.num_blocks)
    runner = TorchRunner(loaded.model, sizes, NGramDrafter())
    if loaded.group is not None:
        loaded.group.meet(sizes)
    return runner, sizes, memory


def _build_gpu_runner(settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes) -> _Built:
    group, pools = loaded.group, _pools(settings, loaded, sizes)
    others = {} if group is None else group.partners(loaded.available)
    try:
        runner, memory = _make_gpu_runner(settings, loaded, sizes, pools, **others)
    except StepFailedError as error:
        if group is None:
            raise
        group.others.lose(error)  # a rank is missed, which says why it has ended
    return runner, attrs.evolve(sizes, num_blocks=memory.num_blocks), memory


def _make_gpu_runner(
    settings: EngineSettings, loaded: _Loaded, sizes: EngineSizes, pools: PoolRequest | None, **others: Any
) -> tuple[CudaRunner, MemoryBudget]:
    from nanoserve.adapters.pytorch.cuda import building, tile_tables  # noqa: PLC0415 - needs a GPU

    partners = None
    if others:
        from nanoserve.adapters.pytorch.parallel.peer_memory import PeerMemory  # noqa: PLC0415 - needs several

        partners = building.Partners(make_memory=PeerMemory, **others)
    count, complaints = tile_tables.load(loaded.model, deterministic=settings.deterministic)
    for each in complaints:
        structlog.get_logger().warning(each)
    if count:
        loaded.watch.lap(f"{counted(count, 'tile')} from tables")
    return building.build_runner(
        loaded.model,
        sizes,
        pools,
        deterministic=settings.deterministic,
        enforce_eager=settings.enforce_eager,
        partners=partners,
        take=None if loaded.memories is None else loaded.memories[KV_CACHE].take,
        beside=bool(loaded.found.parked),
        spare=settings.park_spare,
        lap=loaded.watch.lap,
    )


def _build_engine(
    settings: EngineSettings,
    loaded: _Loaded,
    runner: Runner,
    facts: EngineFacts,
    *,
    tokenizer: Tokenizer | None,
    grammars: Grammars | None = None,
    kv_events: KVEventPublisher | None = None,
) -> Engine[Any]:
    memories: Mapping[str, HostMemory | VirtualMemory] | None = loaded.memories
    own = runner.own if isinstance(runner, LeadingRunner) else runner
    if isinstance(own, TorchRunner):
        memories = host_memories(loaded.model, own.kv)
    what: dict[str, Any] = {"memories": memories, "others": loaded.group and loaded.group.others}
    refusal, rehearsal = choices.why_not_deterministic(facts), getattr(runner, "rehearsal", None)
    seconds = loaded.step_seconds if rehearsal is None else rehearsal.step_seconds
    engine = Engine(
        limits=choices.make_limits(settings, facts, seconds, loaded.guess_seconds, not_deterministic=refusal),
        cache_groups=loaded.found.spec.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=tokenizer,
        depth=facts.depth,
        paranoid=settings.paranoid,
        constraints=None if grammars is None else Constraints(grammars, runner),
        on_failure=log_failed_step,
        kv_events=kv_events,
        directory=open_directory(settings, loaded.found, runner, facts.host_slots, threads=facts.threads),
        lora_store=runner.loras,
        weight_store=ModelWeights(loaded.model, loaded.found.folder, settings.quantization, **what),
    )
    for name, folder in named_loras(settings.lora).items():
        engine.name_lora(name, engine.read_lora(folder))
    return engine
