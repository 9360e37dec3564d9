"""The composition root: only this file and `building` know the adapter of each port.

This half is cheap to import. The parts that compute are in `building`, which loads torch: it is imported inside the functions
that need it, after the process is prepared for torch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pathlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import attrs

from nanoserve.adapters.embedded import head_folder, model_folder
from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.draft_head import own_draft, read_draft
from nanoserve.adapters.huggingface.folders import present_model
from nanoserve.adapters.huggingface.generation_config import read_sampling_defaults
from nanoserve.adapters.huggingface.pooler import choose_pooler
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.pytorch import garbage
from nanoserve.adapters.pytorch.cuda.compilers import start_compilers
from nanoserve.adapters.pytorch.garbage import no_garbage_collected
from nanoserve.adapters.system import environment as machine
from nanoserve.adapters.system.process import SystemClock, wake_gpu
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.text.dialects.tokenized import choose_dialect
from nanoserve.entrypoints.compose import early
from nanoserve.entrypoints.compose.assembly import Assembly, BenchParts, Survey, TextParts, VerificationParts
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.process import Stopwatch, has_gpu_driver, prepare_process, usable_cores
from nanoserve.entrypoints.compose.shapes import find_shape, is_shape, refuse_shape
from nanoserve.ports.driven import Clock, TraceFormat
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.model_spec import ModelSpec, Uncached
from nanoserve.ports.sampling import SamplingDefaults

if TYPE_CHECKING:
    from nanoserve.adapters.llguidance.workers import FairWorkers

environment = machine.environment
leave_unread = garbage.leave_unread
clock: Callable[[], Clock] = SystemClock
"""The clock that every part of a process reads."""
trace_format: Callable[[], TraceFormat] = JsonTraceFormat
"""The form in which a step log is written."""
_MOST_COMPILERS: Final = 32
"""A model has some 70 kernels, and each process that compiles has 100 MB of its own."""


def products() -> dict[str, Any]:
    """The products of weights in each form here, as `products`; nothing where torch cannot be loaded."""
    with contextlib.suppress(ImportError, OSError):
        from nanoserve.adapters.pytorch.told import told_forms  # noqa: PLC0415 - loads torch

        return {"products": told_forms()}
    return {}


def assemble(
    settings: EngineSettings, watch: Stopwatch | None = None, *, num_blocks: tuple[int, ...] = ()
) -> Assembly:
    """Load a model and build an engine around it; `watch` times the start.

    With `num_blocks` of each cache group it is built to sleep beside an engine that has these, and must do so before anything is computed that counts.

    Raises `ModelLoadError`, `OutOfMemoryError`, or `BadValueError` for settings that contradict each other.
    """
    refuse_shape(settings.model, "generate text")
    watch = watch or Stopwatch()
    found = survey(settings, watch, leads=True)
    from nanoserve.entrypoints.compose.building import build_assembly  # noqa: PLC0415 - loads torch

    return build_assembly(settings, attrs.evolve(found, parked=num_blocks), watch)


def preload(*, wakes_gpu: bool = False) -> None:
    """Import all that `assemble` needs, so that a process can wait to become an engine; touches no device unless it `wakes_gpu`."""
    prepare_process()
    if wakes_gpu:
        wake_gpu()
        _start_compilers()
    leave_unread()
    with no_garbage_collected():
        from nanoserve.adapters.pytorch.devices import load_operators  # noqa: PLC0415 - loads torch

        if wakes_gpu and has_gpu_driver():
            load_operators()
        from nanoserve.entrypoints.compose import building  # noqa: F401, PLC0415 - meanwhile

        if has_gpu_driver():
            with contextlib.suppress(ImportError):  # without Triton there is no GPU to compute on
                from nanoserve.adapters.pytorch.cuda import building as _  # noqa: F401, PLC0415 - loads Triton
        gc.freeze()  # before a collection looks at all of it


def _start_compilers(num_ranks: int = 1) -> None:
    """Compile a GPU's kernels by all cores when the time has come; the ranks of a model share them."""
    if has_gpu_driver():
        start_compilers(max(1, min(usable_cores(logical=True) // num_ranks, _MOST_COMPILERS)))


def assemble_for_verification(settings: EngineSettings) -> VerificationParts:
    """As `assemble`, with the model laid open and transformers' own implementation beside it.

    Raises `BadValueError` for an encoder, and for keys and values that are rounded.
    """
    refuse_shape(settings.model, "be compared with transformers")
    if settings.kv_cache_dtype != "auto":
        message = "rounds keys and values, as transformers does not; leave it out to verify"
        raise BadValueError("kv_cache_dtype", f"{settings.kv_cache_dtype} {message}")
    found = survey(settings, leads=True)
    if any(isinstance(group.kind, Uncached) for group in found.spec.cache_groups):
        raise BadValueError(
            "model", "is an encoder, which writes no text to compare; try it with `nanoserve embed`"
        )
    from nanoserve.entrypoints.compose.building import build_verification  # noqa: PLC0415 - loads torch

    return build_verification(settings, found)


def assemble_bench(settings: EngineSettings, watch: Stopwatch | None = None) -> BenchParts:
    """An engine without tokenizer, over a model's own weights or random ones of a shape; `watch` times its start."""
    watch = watch or Stopwatch()
    found = survey(settings, watch, leads=True)
    from nanoserve.entrypoints.compose.building import build_bench  # noqa: PLC0415 - loads torch

    return build_bench(settings, found, watch)


def survey(settings: EngineSettings, watch: Stopwatch | None = None, *, leads: bool = False) -> Survey:
    """Find a model and decide where and in which numbers it is computed, without loading its weights.

    With `leads` the other ranks' processes start, so that they import what they need while this one does.

    Raises `ModelLoadError` or `BadValueError`.
    """
    watch = watch or Stopwatch()
    spec, folder = find_spec(settings)
    draft = None
    if settings.draft is not None and folder is None:
        raise BadValueError("draft", "is for a model's own weights, and a shape has none; leave it out")
    if settings.draft is not None:
        draft = str(head_folder()) if settings.draft == "embedded" else _resolve(settings.draft)
        spec = attrs.evolve(spec, draft=read_draft(draft, spec, folder))
    elif settings.speculate == "mtp":
        spec = attrs.evolve(spec, draft=own_draft(spec))
    others = None
    if leads and settings.tensor_parallel_size > 1:
        from nanoserve.adapters.engine_process.ranks.leader import launch_ranks  # noqa: PLC0415 - few have them

        others = launch_ranks("nanoserve.entrypoints.compose.follower", settings.tensor_parallel_size)
    prepare_process()
    if settings.device != "cpu" and "torch" not in sys.modules:
        wake_gpu()
    if settings.device != "cpu":
        _start_compilers(settings.tensor_parallel_size)
    with no_garbage_collected():
        from nanoserve.entrypoints.compose.building import survey_device  # noqa: PLC0415 - loads torch

        if not gc.get_freeze_count():  # in a process of ours it is frozen already
            gc.freeze()
            gc.unfreeze()  # what was imported is old now, so that no collection looks at all of it soon
    watch.lap("imports")
    found = attrs.evolve(survey_device(settings, spec, folder), draft=draft, others=others)
    watch.lap("device")
    return found


def assemble_text(folder: str, dialect: str | None = None, task: str = "auto") -> TextParts:
    """The tokenizer, the template and the defaults of the model in a folder, and its dialect, or that of the given name.

    `task` is the setting of that name.

    Raises `ModelLoadError`.
    """
    prepare_process()
    spec = read_spec(folder)
    tokenizer = HFTokenizer(folder)
    template = HFChatTemplate(tokenizer)
    return TextParts(
        tokenizer=tokenizer,
        tokenizer_facts=tokenizer.facts,
        template=template,
        template_variables=template.variables,
        eos_token_ids=spec.eos_token_ids,
        defaults=read_sampling_defaults(folder),
        dialect=choose_dialect(tokenizer.dialect_facts, dialect),
        pooler=choose_pooler(task, tokenizer, spec.hidden_size),
    )


def check_constraint(constraint: Constraint, *, is_composed: bool = False) -> None:
    """Raises `BadValueError` for a constraint that no engine can keep; takes milliseconds, so that a door can refuse it at once.

    One that `is_composed` around another that was checked is weighed alone.
    """
    from nanoserve.adapters.llguidance.reading import check  # noqa: PLC0415 - few requests have one

    check(constraint, is_composed=is_composed)


def begin_check(constraint: Constraint, client: str, is_composed: bool = False) -> Future[None]:
    """`check_constraint` in one of the threads that do it for all clients, by turns; at once where the verdict is known."""
    is_begun = _checks.cache_info().currsize  # else what it needs is imported, which takes long, in a thread
    made = _checks().submit if not is_begun or not _is_known(constraint, is_composed) else _at_once
    return made(client, lambda: check_constraint(constraint, is_composed=is_composed))


def _is_known(constraint: Constraint, is_composed: bool) -> bool:
    from nanoserve.adapters.llguidance.reading import is_known  # noqa: PLC0415 - few requests have one

    return is_known(constraint, is_composed=is_composed)


def _at_once(_client: str, work: Callable[[], None]) -> Future[None]:
    made = Future[None]()
    try:
        work()
        made.set_result(None)
    except BadValueError as error:
        made.set_exception(error)
    return made


@functools.cache
def _checks() -> FairWorkers[None]:
    from nanoserve.adapters.llguidance.workers import FairWorkers  # noqa: PLC0415 - few requests have one

    # Of usual priority: the server's loop would wait for one that has the interpreter's lock.
    return FairWorkers(2)


def find_model(settings: EngineSettings) -> str:
    """The folder of a model, downloaded first if it must be. Raises `ModelLoadError`."""
    refuse_shape(settings.model, "be served")
    return _find_folder(settings)


def local_defaults(model: str | None) -> SamplingDefaults | None:
    """The sampling defaults of a model whose files are here already; None for one on the hub."""
    folder = model_folder() if model is None else pathlib.Path(model).expanduser()
    return read_sampling_defaults(str(folder)) if folder.is_dir() else None


def find_spec(settings: EngineSettings) -> tuple[ModelSpec, str | None]:
    """A model's numbers and its folder; a shape has none. Raises `ModelLoadError` or `BadValueError`."""
    if settings.model is not None and is_shape(settings.model):
        return find_shape(settings.model), None
    folder = _find_folder(settings)
    return read_spec(folder), folder


def _find_folder(settings: EngineSettings) -> str:
    """Where the model's files are; found before anything slow is imported, because names are often mistyped."""
    if settings.model is None:
        return str(model_folder())
    found = _resolve(settings.model, settings.revision)
    early.read_ahead(found)
    return present_folder(found) if found.endswith(".gguf") else found


def _resolve(name: str, revision: str | None = None) -> str:
    if found := present_model(name):  # what exists here wins over a hub name
        return found
    from nanoserve.adapters.huggingface.hub import download_model  # noqa: PLC0415 - loads 40 modules

    return download_model(name, revision=revision, progress=sys.stderr.isatty())
