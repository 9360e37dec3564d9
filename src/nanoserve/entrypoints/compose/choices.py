"""Decides what the settings left open, from the model and the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from nanoserve.domain.scheduling.limits import Limits, Policy, RequestClass
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.kinds import named_loras
from nanoserve.entrypoints.compose.process import has_bfloat16, usable_cores
from nanoserve.ports.engine_facts import EngineFacts, EngineSizes
from nanoserve.ports.errors import BadValueError, OutOfMemoryError
from nanoserve.ports.layer_spec import ExpertsSpec
from nanoserve.ports.model_spec import ModelSpec, Recurrent, Uncached
from nanoserve.ports.request import DEFERRED_CLASS

SHORTEST_CHOSEN: Final = 1024
"""A shorter context is used only if it is asked for."""
_MOST_DEFERRED: Final = 4096
FitT = TypeVar("FitT")


_STEPS: Final = {"cpu": (64, 2048, 1), "cuda": (256, 8192, 2)}
"""By device the rows and tokens of a step, and the steps in flight: a GPU computes while the host plans, and needs many
rows and long chunks to be busy."""
_WIDTHS: Final = {"auto": 8, "ngram": 4, "eagle3": 4, "mtp": 4, "draft": 4}
"""By drafter the most tokens of a row and step; three drafts are right often enough to be tried without a measure."""
_BYTE: Final = 256
"""Experts whose numbers fit into one."""
_CROWD: Final = 512
"""Rows of a step on a GPU of `_LARGE` bytes, which has room for their tokens and logits."""
_LARGE: Final = 64 << 30


def choose_device(
    settings: EngineSettings, why_no_gpu: Callable[[], str | None], count_gpus: Callable[[], int]
) -> str:
    """The device to compute on, `cpu` or `cuda`; `why_no_gpu` gives the reason without a GPU, and is called only if needed.

    Raises `BadValueError` for a missing GPU, and for settings that the device does not support.
    """
    obstacle = None if settings.device == "cpu" else why_no_gpu()
    if settings.device == "cuda" and obstacle is not None:
        raise BadValueError("device", f"cuda cannot be used: {obstacle}")
    device = "cpu" if settings.device == "cpu" or obstacle is not None else "cuda"
    wanted = settings.tensor_parallel_size
    if device == "cuda" and wanted > 1 and (count := count_gpus()) < wanted:
        message = (
            f"{wanted} needs as many GPUs, and there are {count}; ask for fewer, or compute with device cpu"
        )
        raise BadValueError("tensor_parallel_size", message)
    asked = settings.quantization
    where, known = ("a GPU", ("fp8", "int4")) if device == "cuda" else ("a CPU", ("int8", "int4"))
    if asked is not None and asked not in known:
        message = f"{asked} is not available on {where}; leave it out, or take {' or '.join(known)}"
        raise BadValueError("quantization", message)
    if settings.quantize_head is not None and device == "cpu":
        raise BadValueError("quantize_head", "is for a GPU; leave it out")
    return device


def choose_sizes(settings: EngineSettings, spec: ModelSpec, device: str, memory: int = 0) -> EngineSizes:
    """The sizes that the settings ask for; where they are silent the defaults of a device with `memory` bytes, bent to fit what was asked for.

    Recurrent states take megabytes a row, so their rows do not become more with the memory. How long a sequence may be and how many
    blocks there are is left to the memory, and stands for what is asked for. Raises `BadValueError` if a step could not hold one
    token of each sequence.
    """
    most_rows, most_tokens, _ = _STEPS[device]
    if (
        device == "cuda"
        and memory >= _LARGE
        and not any(isinstance(each.kind, Recurrent) for each in spec.cache_groups)
    ):
        most_rows = _CROWD
    rows, tokens = settings.max_num_seqs, settings.max_num_batched_tokens
    if rows is not None and tokens is not None and tokens < rows:
        message = f"must be at least max_num_seqs ({rows}), got {tokens}; raise it or lower max_num_seqs"
        raise BadValueError("max_num_batched_tokens", message)
    length = settings.max_model_len or spec.usual_length
    is_whole = any(isinstance(each.kind, Uncached) for each in spec.cache_groups)
    if is_whole and (tokens or length) < length:
        message = (
            f"must be at least max_model_len ({length}): texts of an encoder are computed whole; got {tokens}"
        )
        raise BadValueError("max_num_batched_tokens", f"{message}; raise it or lower max_model_len")
    if is_whole and choose_loras(settings):
        raise BadValueError("lora", "adapters are for models that write text; leave it out for an encoder")
    return EngineSizes(
        max_num_seqs=min(most_rows, tokens or most_rows) if rows is None else rows,
        max_num_batched_tokens=tokens or max(most_tokens, rows or 0, length if is_whole else 0),
        max_model_len=length,
        vocab_size=spec.vocab_size,
        block_size=settings.block_size,
        prefix_caching=settings.enable_prefix_caching and not is_whole,
        max_loras=choose_loras(settings),
        max_lora_rank=settings.max_lora_rank,
        max_logprobs=settings.max_logprobs,
        max_width=choose_width(settings, spec, device),
        processed_logprobs=settings.logprobs_mode == "processed_logprobs",
        kv_cache_dtype=settings.kv_cache_dtype,
        routed_experts=choose_routed(settings, spec),
    )


def choose_routed(settings: EngineSettings, spec: ModelSpec) -> tuple[int, ...]:
    """See `EngineSizes.routed_experts`. Raises `BadValueError` if experts are to be recorded and cannot be."""
    if not settings.enable_return_routed_experts:
        return ()
    feeds = [layer.feed for layer in spec.layers if isinstance(layer.feed, ExpertsSpec)]
    refusals = {
        f"{spec.architecture} has no experts": not feeds,
        f"no layer of {spec.architecture} keeps all tokens": spec.complete_group is None,
        "it is not available beside speculation yet": settings.speculate != "off"
        or settings.draft is not None,
        "it is not kept with blocks in other tiers yet (kv_offload_memory, kv_offload_dir)": settings.kv_offload_memory
        is not None
        or settings.kv_offload_dir is not None,
    }
    for why in (why for why, is_so in refusals.items() if is_so):
        raise BadValueError("enable_return_routed_experts", f"{why}; leave one of them out")
    size = 1 if max(feed.count for feed in feeds) <= _BYTE else 2
    return spec.num_layers, max(feed.top for feed in feeds), size


def choose_kept(
    settings: EngineSettings, spec: ModelSpec, why_no_float8: Callable[[], str | None]
) -> ModelSpec:
    """The model with keys and values as they shall be kept: in 8-bit floats where a layer reads all of them; says which layers stay as they are.

    Raises `BadValueError` if no layer does, or the device has no such numbers.
    """
    if settings.kv_cache_dtype == "auto":
        return spec
    narrow = spec.keeping("fp8")
    kinds = sorted({group.kind.name for group in spec.cache_groups})
    if narrow == spec:
        message = f"fp8 is for keys and values of all earlier tokens, and {spec.architecture} keeps none ({', '.join(kinds)}); leave it out"
        raise BadValueError("kv_cache_dtype", message)
    if (obstacle := why_no_float8()) is not None:
        raise BadValueError("kv_cache_dtype", f"fp8 cannot be used: {obstacle}; leave it out")
    if len(kinds) > 1:
        stay = {
            group.kind.name: len(group.layers) for group in narrow.cache_groups if group.narrow_bytes is None
        }
        structlog.get_logger().info("layers whose cache is not kept in 8-bit floats", **stay)
    return narrow


def choose_loras(settings: EngineSettings) -> int:
    """Slots for adapters. Raises `BadValueError` if there may be none."""
    named = len(named_loras(settings.lora))
    slots = named if settings.max_loras is None else settings.max_loras
    if named and not slots:
        raise BadValueError("max_loras", "must be at least 1 if --lora names adapters")
    return slots


def check_spare(settings: EngineSettings, spec: ModelSpec, device: str, *, is_gguf: bool) -> None:
    """Raise `BadValueError` if a spare cannot be parked."""
    if not settings.park_spare:
        return
    others = {
        "tensor_parallel_size": settings.tensor_parallel_size > 1,
        "kv_events_port": settings.kv_events_port is not None,
        "kv_offload_dir": settings.kv_offload_dir is not None,
        "speculate=auto": device == "cuda" and settings.speculate == "auto",
    }
    for name in (name for name, is_there in others.items() if is_there):
        raise BadValueError("park_spare", f"cannot be combined with {name} yet; leave one of them out")
    if device == "cuda" and (spec.stored is not None or spec.packing is not None or is_gguf):
        message = "was not tried with weights that are stored quantized; serve plain floats, or leave it out"
        raise BadValueError("park_spare", message)


def choose_width(settings: EngineSettings, spec: ModelSpec, device: str) -> int:
    """The most tokens that a row computes in a step: one where nothing is drafted.

    Raises `BadValueError` if drafts were asked for and there can be none.
    """
    has_head, is_split = settings.draft is not None, settings.tensor_parallel_size > 1
    speculate = "draft" if has_head and settings.speculate == "off" else settings.speculate
    if speculate == "off":
        return 1
    if has_head and is_split:
        raise BadValueError("draft", "draft heads run in one process only, for now; leave draft out")
    if isinstance(spec.draft, ModelSpec) and device == "cuda":
        raise BadValueError("draft", "a draft model is not available on a GPU yet; name a head or none")
    refusals = {
        f"{speculate} needs a head or a smaller model: name its folder with draft": speculate
        in {"eagle3", "draft"}
        and not has_head,
        "is eagle3, and draft names a whole model; take draft or auto": speculate == "eagle3"
        and isinstance(spec.draft, ModelSpec),
        f"is {speculate}, and a head drafts in its place; take eagle3 or auto, or leave draft out": speculate
        in {"ngram", "mtp"}
        and has_head,
        f"mtp needs layers that predict further tokens, and {spec.architecture} has none here that can draft (num_nextn_predict_layers); take ngram or off": speculate
        == "mtp"
        and spec.draft is None,
        "mtp drafts in one process only, for now; take ngram or off": speculate == "mtp" and is_split,
        "drafts are for models that write text; take off for an encoder": spec.encoder is not None,
        f"{settings.speculate} is not available over several GPUs yet; take off": device == "cuda"
        and is_split,
        "auto measures what steps cost, which cannot be done over several ranks yet; take ngram or off": is_split
        and speculate == "auto",
    }
    for why in (why for why, is_so in refusals.items() if is_so):
        raise BadValueError("speculate", why)
    return _WIDTHS[speculate]


def choose_depth(settings: EngineSettings, device: str) -> int:
    """The number of steps in flight at once."""
    return _STEPS[device][2] if settings.depth is None else settings.depth


def choose_dtype(settings: EngineSettings, spec: ModelSpec, device: str) -> str:
    """The numbers to compute in.

    `auto` keeps a checkpoint's own on a GPU, and on a CPU keeps bfloat16 where the processor multiplies it in
    hardware. Everything else is computed in float32: processors emulate the other small types, slower than
    float32 and less exactly. Raises `BadValueError` for float16 where the model's activations exceed it.
    """
    if settings.dtype == "float16" and spec.exceeds_float16:
        message = f"float16 overflows in {spec.architecture}, which was made for bfloat16; ask for bfloat16 or float32"
        raise BadValueError("dtype", message)
    if settings.dtype != "auto":
        return settings.dtype
    if device == "cuda":
        small = {"bfloat16"} if spec.exceeds_float16 else {"bfloat16", "float16"}
        return spec.dtype if spec.dtype in small else "float32"
    return "bfloat16" if spec.dtype == "bfloat16" and has_bfloat16() else "float32"


def user_chose_threads(settings: EngineSettings) -> bool:
    """True if the number of threads is set, by us or by OpenMP's own variable; otherwise it is measured."""
    return settings.threads is not None or bool(os.environ.get("OMP_NUM_THREADS"))


def choose_threads(settings: EngineSettings) -> int | None:
    """The most threads for a process to compute with; None leaves it at OMP_NUM_THREADS."""
    if settings.threads is None and user_chose_threads(settings):
        return None
    return settings.threads or max(1, usable_cores() // settings.tensor_parallel_size)


def choose_model_length(settings: EngineSettings, spec: ModelSpec, fits: Callable[[int], FitT]) -> FitT:
    """The result of `fits` for the longest sequence that it raises no `OutOfMemoryError` for.

    A length that was asked for is kept or refused. Otherwise it is the model's own context (or, where longer sequences
    would change all others, the longest that do not), halved until it fits into memory.
    """
    length = settings.max_model_len or spec.usual_length
    if length > spec.max_position:
        message = f"must be at most {spec.max_position}, which the model was made for, got {length}"
        raise BadValueError("max_model_len", message)
    while True:
        try:
            return fits(length)
        except OutOfMemoryError:
            if settings.max_model_len is not None or length // 2 < SHORTEST_CHOSEN:
                raise
            length //= 2


def mask_workers() -> int:
    """Processes for the masks of structured output: three of four cores, 16 at the most, but two where there are as many."""
    return min(usable_cores(), max(2, min(16, usable_cores() * 3 // 4)))


def make_classes(written: str | None) -> tuple[RequestClass, ...]:
    """The classes of requests: those of the settings, one for requests that can wait, and the default one for all others."""
    always = (RequestClass(), RequestClass(name=DEFERRED_CLASS, max_waiting=_MOST_DEFERRED))
    classes = [_read_class(*each.split(":")) for each in written.split(",")] if written else []
    names = {each.name for each in classes}
    return (*classes, *(each for each in always if each.name not in names))


def _read_class(
    name: str, priority: str = "0", max_running: str | None = None, max_waiting: str | None = None
) -> RequestClass:
    return RequestClass(
        name=name,
        priority=int(priority),
        max_running=None if max_running is None else int(max_running),
        max_waiting=None if max_waiting is None else int(max_waiting),
    )


def why_not_deterministic(facts: EngineFacts) -> str:
    """The reason why a request cannot be deterministic by itself; empty if it can."""
    if facts.tensor_parallel_size > 1:
        return "in several processes all requests are, or none is: start the engine with --deterministic"
    return ""


def make_limits(
    settings: EngineSettings,
    sizes: EngineSizes,
    step_seconds: tuple[tuple[int, float], ...] = (),
    guess_seconds: tuple[tuple[int, float], ...] = (),
    *,
    not_deterministic: str = "",
) -> Limits:
    """The scheduler's limits; raises `BadValueError` for settings that contradict each other."""
    return Limits(
        **sizes.sizes(),
        step_seconds=step_seconds if settings.speculate == "auto" else (),
        guess_seconds=guess_seconds,
        deterministic=settings.deterministic,
        not_deterministic=not_deterministic,
        invariant_decoding=isinstance(sizes, EngineFacts) and sizes.device == "cuda",
        isolated=settings.isolation,
        policy=Policy(settings.policy),
        watermark=settings.watermark,
        min_offload_tokens=settings.kv_offload_min_tokens,
        hands_over=settings.kv_role == "prefill",
        classes=make_classes(settings.request_classes),
        deferred_rows=settings.deferred_rows,
        max_itl=None if settings.max_itl_ms is None else settings.max_itl_ms / 1000,
    )
