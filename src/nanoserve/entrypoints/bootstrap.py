"""The composition root: the only file that knows which adapter stands behind which port.

The adapters that load torch and transformers are imported inside the functions that need them, after the process
is prepared for them; importing this module is cheap.
"""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Any

import attrs

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.generation_defaults import read_generation_defaults
from nanoserve.adapters.system.allocator import keep_freed_memory
from nanoserve.adapters.system.clock import SystemClock
from nanoserve.adapters.system.environment import environment
from nanoserve.domain.engine import Engine
from nanoserve.entrypoints.assembly import Assembly, Budget, Defaults, VerificationParts
from nanoserve.entrypoints.choices import (
    choose_dtype,
    choose_model_length,
    choose_threads,
    make_limits,
    user_chose_threads,
)
from nanoserve.entrypoints.config import EngineSettings
from nanoserve.entrypoints.process import prepare_process
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.models import DecoderModel

__all__ = ["assemble", "assemble_for_verification", "environment", "local_defaults"]


def assemble(settings: EngineSettings) -> Assembly:
    """Load a model and build an engine around it.

    Raises `ModelLoadError`, `OutOfMemoryError`, or `BadValueError` for settings that contradict each other.
    """
    return _assemble(settings, _load(settings))


def assemble_for_verification(settings: EngineSettings) -> VerificationParts:
    """As `assemble`, with the model laid open and transformers' own implementation beside it."""
    loaded = _load(settings)
    from nanoserve.adapters.huggingface.reference_model import HFReferenceModel  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.observation import ObservedModel  # noqa: PLC0415 - loads torch

    return VerificationParts(
        assembly=_assemble(settings, loaded),
        ours=ObservedModel(loaded.model, dtype=loaded.dtype).activations,
        reference=HFReferenceModel(loaded.folder),
    )


def local_defaults(model: str | None) -> Defaults | None:
    """The sampling defaults of a model whose files are here already; None for one on the hub."""
    folder = model_folder() if model is None else pathlib.Path(model).expanduser()
    return _read_defaults(str(folder)) if folder.is_dir() else None


@attrs.frozen(eq=False)
class _Loaded:
    """A model in memory; `dtype` is the name of the numbers it computes in."""

    folder: str
    spec: ModelSpec
    dtype: str
    threads: int
    model: DecoderModel


def _load(settings: EngineSettings) -> _Loaded:
    prepare_process()
    folder = _find_folder(settings)
    from nanoserve.adapters.huggingface.spec import read_spec  # noqa: PLC0415 - loads transformers
    from nanoserve.adapters.pytorch import compute_settings  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.models import build_model  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.threads import decode_seconds, fastest_threads  # noqa: PLC0415 - loads torch

    threads = compute_settings.set_threads(choose_threads(settings))
    spec = read_spec(folder)
    dtype = choose_dtype(settings, spec)
    model = build_model(
        spec,
        folder,
        dtype=compute_settings.DTYPES[dtype],
        device=compute_settings.CPU,
        quantization=settings.quantization,
    )
    keep_freed_memory()
    if not user_chose_threads(settings):
        threads = fastest_threads(threads, decode_seconds(model, compute_settings.DTYPES[dtype]))
    return _Loaded(folder, spec, dtype, compute_settings.set_threads(threads), model)


def _find_folder(settings: EngineSettings) -> str:
    """Where the model's files are; found before anything slow is imported, because names are often mistyped."""
    if settings.model is None:
        return str(model_folder())
    from nanoserve.adapters.huggingface.hub import resolve_model  # noqa: PLC0415 - not needed for the built-in model

    return resolve_model(settings.model, revision=settings.revision, progress=sys.stderr.isatty())


def _assemble(settings: EngineSettings, loaded: _Loaded) -> Assembly:
    from nanoserve.adapters.huggingface.chat_template import HFChatTemplate  # noqa: PLC0415 - loads transformers
    from nanoserve.adapters.huggingface.tokenizer import HFTokenizer  # noqa: PLC0415 - loads transformers

    tokenizer = HFTokenizer(loaded.folder)
    budget = _plan_budget(settings, loaded)
    return Assembly(
        folder=loaded.folder,
        engine=_build_engine(settings, loaded, budget, tokenizer),
        tokenizer=tokenizer,
        template=HFChatTemplate(tokenizer),
        spec=loaded.spec,
        defaults=_read_defaults(loaded.folder),
        budget=budget,
    )


def _plan_budget(settings: EngineSettings, loaded: _Loaded) -> Budget:
    from nanoserve.adapters.pytorch.compute_settings import DTYPES  # noqa: PLC0415 - loads torch
    from nanoserve.adapters.pytorch.memory import DEFAULT_FRACTION, MemoryBudget, plan_memory  # noqa: PLC0415 - loads torch

    amount = settings.kv_memory

    def plan(max_model_len: int) -> MemoryBudget:
        return plan_memory(
            loaded.spec,
            block_size=settings.block_size,
            dtype=DTYPES[loaded.dtype],
            max_model_len=max_model_len,
            max_num_seqs=settings.max_num_seqs,
            memory_fraction=amount if isinstance(amount, float) else DEFAULT_FRACTION,
            kv_memory_bytes=amount if isinstance(amount, int) else None,
            num_blocks=settings.num_kv_blocks,
        )

    max_model_len, memory = choose_model_length(settings, loaded.spec, plan)
    return Budget(
        num_kv_blocks=memory.num_blocks,
        kv_bytes=memory.kv,
        max_model_len=max_model_len,
        dtype=loaded.dtype,
        threads=loaded.threads,
    )


def _build_engine(
    settings: EngineSettings, loaded: _Loaded, budget: Budget, tokenizer: Tokenizer
) -> Engine[Any]:
    from nanoserve.adapters.pytorch.runner import TorchRunner  # noqa: PLC0415 - loads torch

    limits = make_limits(settings, loaded.spec, budget)
    runner = TorchRunner(
        loaded.model,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
    )
    return Engine(
        limits=limits,
        cache_groups=loaded.spec.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=tokenizer,
        depth=settings.depth,
        paranoid=settings.paranoid,
    )


def _read_defaults(folder: str) -> Defaults:
    found = read_generation_defaults(folder)
    return Defaults(values=found.values, origin=found.origin)
