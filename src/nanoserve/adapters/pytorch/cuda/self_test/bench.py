"""What the checks of the self-test share: the model whose kernels they try, and random and poisoned tensors."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.model_spec import ModelSpec

POISON = -7
"""What integers are before a kernel writes them; floats are NaN."""


@attrs.frozen(eq=False, kw_only=True)
class Bench:
    """One model on one device.

    Attributes:
        block_size: tokens per block of the KV cache.
        dtype: of weights, activations and cache.
        deterministic: whether serving uses the kernels whose results do not depend on the batch.
        pdl: whether serving launches the kernels of decoding steps with programmatic dependent launch.
    """

    model: DecoderModel
    block_size: int
    device: torch.device
    dtype: torch.dtype
    deterministic: bool = False
    pdl: bool = False
    _generator: torch.Generator = attrs.field(init=False)

    @_generator.default
    def _seeded(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(0)

    @property
    def spec(self) -> ModelSpec:
        """The model's dimensions."""
        return self.model.spec

    @property
    def launches(self) -> tuple[bool, ...]:
        """How a kernel that is part of decoding and of mixed steps is launched: with PDL, where there is any, and without."""
        return (False, True) if self.pdl else (False,)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Random numbers of mean 0 and variance 1, in the model's dtype if no other is given."""
        return torch.randn(shape, device=self.device, generator=self._generator).to(dtype or self.dtype)

    def normal_like(self, other: Tensor) -> Tensor:
        """Random numbers of another tensor's shape and size, in the model's dtype: in a sum neither hides the other."""
        return self.normal(*other.shape) * other.square().mean().sqrt().to(self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Random integers from `low` on, below `high`."""
        return torch.randint(low, high, shape, device=self.device, dtype=dtype, generator=self._generator)

    def these(self, values: object, dtype: torch.dtype = torch.int32) -> Tensor:
        """Given numbers, on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def poisoned(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor whose every element shows if no kernel writes it."""
        dtype = dtype or self.dtype
        poison = torch.nan if dtype.is_floating_point else POISON
        return torch.full(shape, poison, dtype=dtype, device=self.device)

    def settle(self) -> None:
        """Wait for the device: under PDL a kernel reads some of its inputs while the kernels before it still run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
