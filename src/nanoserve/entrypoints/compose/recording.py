"""Starts the recording of an assembly's engine, with a header that describes the engine."""

from __future__ import annotations

import datetime as dt

from nanoserve.entrypoints.app.traces.writer import Recording, TraceWriter
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.command_settings import TraceSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings, shown_model
from nanoserve.entrypoints.compose.process import installed_release
from nanoserve.ports.driven import TraceFormat
from nanoserve.ports.model_spec import per_group
from nanoserve.ports.trace import TraceHeader


def start_recording(
    settings: TraceSettings, engine: EngineSettings, assembly: Assembly, trace_format: TraceFormat
) -> Recording | None:
    """Record an assembly's engine as the settings ask; None if they ask for no trace. Raises `OSError`."""
    if settings.trace is None:
        return None
    header = trace_header(engine, assembly, has_words=settings.trace_words)
    words = assembly.tokenizer if settings.trace_words else None
    return Recording(assembly.engine, TraceWriter(settings.trace, header, trace_format), words)


def trace_header(settings: EngineSettings, assembly: Assembly, *, has_words: bool) -> TraceHeader:
    """The header of this engine's step log, as of now; of a model's folder it tells the last part only."""
    facts = assembly.facts
    return TraceHeader(
        release=installed_release(),
        started=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        model=shown_model(settings.model),
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
