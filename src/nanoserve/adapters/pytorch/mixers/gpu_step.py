"""The mixing of a step's tokens on a GPU: the mixers that it calls, and their arguments.

The other questions to a mixer are in `gpu_mixer.py`. Next: the mixer of attention, `attention/gpu.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer


@attrs.frozen(eq=False, kw_only=True)
class GpuStep:
    """Chunks' tokens, `num_tokens` of them, then the newest token of each place, or as many as it has. Fulfils `Step`.

    Attributes:
        outs: where to mix to, by width.
        plans: what each mixer has prepared for the chunks.
        chosen: tiles of the only chunks' tokens whose results are wanted, if not all are; the others only enter the cache.
        width: tokens of each place, and rows may be at their limits; 0 for one token of rows that are not.
        invariant: whether rows decode with the arithmetic of prompts, so that batch and chunking leave no trace.
        pdl: see `kernels.device.pdl`.
    """

    mixers: Mapping[int, GpuMixer]
    outs: Mapping[int, Tensor]
    places: Tensor
    splits: int
    num_tokens: int = 0
    plans: Mapping[GpuMixer, Any] = attrs.field(factory=dict)
    chosen: Tensor | None = None
    width: int = 0
    invariant: bool = False
    pdl: bool = False

    def mix(self, part: Any, /, *projected: Tensor) -> Tensor:
        out = self.outs[part.output.in_features]
        self.mixers[part.layer].mix(part, out, self, *projected)
        return out
