"""The questions that the engine asks of a kind of mixer, each answered in its own folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.ports.layer_spec import Mixer
from nanoserve.ports.model_spec import CacheGroup

Page = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a layer's cache for a block of tokens, or for a row's whole past."""


class MixerKind(Protocol):
    """A mixer of given dimensions. Its `Part` computes with weights; steps mix the part's projections."""

    def __init__(self, spec: Any, /) -> None: ...

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:
        """One page of each tensor that a layer keeps."""

    def split(self, divide: Callable[[int, str], int], holders: int, /) -> Mixer | str:
        """Each rank's part of it, or the name of a dimension that cannot be split; `divide` takes a number and its name, and `holders` may deal out by token what all heads read."""

    def prepare(self, group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:
        """Compute once the values that the layers of a cache group share; returns their `Step.mix`."""

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        """The class that computes it on a GPU."""
