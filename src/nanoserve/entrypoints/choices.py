"""Decides what the settings left open, from the model and the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from nanoserve.domain.scheduling.limits import Limits, Policy
from nanoserve.entrypoints.assembly import Budget
from nanoserve.entrypoints.config import EngineSettings
from nanoserve.entrypoints.machine import has_bfloat16, usable_cores
from nanoserve.ports.errors import BadValueError, OutOfMemoryError
from nanoserve.ports.model_spec import ModelSpec

SHORTEST_CHOSEN: Final = 1024
"""Nobody is given a shorter context without having asked for it."""
FitT = TypeVar("FitT")


def choose_dtype(settings: EngineSettings, spec: ModelSpec) -> str:
    """The numbers to compute in.

    `auto` keeps a bfloat16 checkpoint where the processor multiplies bfloat16 in hardware. Everything else is
    computed in float32: processors emulate the other small types, slower than float32 and less exactly.
    """
    if settings.dtype != "auto":
        return settings.dtype
    return "bfloat16" if spec.dtype == "bfloat16" and has_bfloat16() else "float32"


def user_chose_threads(settings: EngineSettings) -> bool:
    """Whether the number of threads is set, by us or by OpenMP's own variable; otherwise it is measured."""
    return settings.threads is not None or bool(os.environ.get("OMP_NUM_THREADS"))


def choose_threads(settings: EngineSettings) -> int | None:
    """The most threads to compute with; None leaves it at OMP_NUM_THREADS."""
    if settings.threads is None and user_chose_threads(settings):
        return None
    return settings.threads or usable_cores()


def choose_model_length(
    settings: EngineSettings, spec: ModelSpec, fits: Callable[[int], FitT]
) -> tuple[int, FitT]:
    """The longest sequence, and what `fits` returns for it, which raises `OutOfMemoryError` for too long ones.

    A length that was asked for is kept or refused. Otherwise it is what the model was made for, halved
    until it fits into memory.
    """
    length = settings.max_model_len or spec.max_position
    if length > spec.max_position:
        message = f"must be at most {spec.max_position}, which the model was made for, got {length}"
        raise BadValueError("max_model_len", message)
    while True:
        try:
            return length, fits(length)
        except OutOfMemoryError:
            if settings.max_model_len is not None or length // 2 < SHORTEST_CHOSEN:
                raise
            length //= 2


def make_limits(settings: EngineSettings, spec: ModelSpec, budget: Budget) -> Limits:
    """The scheduler's limits; raises `BadValueError` for settings that contradict each other."""
    return Limits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=budget.max_model_len,
        vocab_size=spec.vocab_size,
        block_size=settings.block_size,
        num_blocks=budget.num_kv_blocks,
        prefix_caching=settings.enable_prefix_caching,
        isolated=settings.isolation,
        policy=Policy(settings.policy),
        watermark=settings.watermark,
        max_itl=None if settings.max_itl_ms is None else settings.max_itl_ms / 1000,
    )
