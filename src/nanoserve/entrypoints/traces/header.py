"""The first line of a trace, from an engine and its settings."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import pathlib

from nanoserve.entrypoints.assembly import Assembly
from nanoserve.entrypoints.config import EngineSettings
from nanoserve.ports.model_spec import per_group
from nanoserve.ports.trace import TraceHeader


def trace_header(settings: EngineSettings, assembly: Assembly, *, has_words: bool) -> TraceHeader:
    """What a reader of this engine's step log must know, as of now; of a model's folder it tells the last part only."""
    facts = assembly.facts
    return TraceHeader(
        release=_release(),
        started=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        model=_model_name(settings.model),
        device=facts.device,
        dtype=facts.dtype,
        block_size=facts.block_size,
        num_blocks=facts.num_kv_blocks,
        windows=tuple(group.window for group in assembly.spec.cache_groups),
        kinds=tuple(type(group.kind).__name__.lower() for group in assembly.spec.cache_groups),
        pools=per_group(facts.num_blocks, len(assembly.spec.cache_groups)),
        max_num_seqs=facts.max_num_seqs,
        max_num_batched_tokens=facts.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        prefix_caching=facts.prefix_caching,
        has_words=has_words,
    )


def _model_name(model: str | None) -> str:
    if model is None:
        return "built-in"
    path = pathlib.Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def _release() -> str:
    try:
        return importlib.metadata.version("nanoserve")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
