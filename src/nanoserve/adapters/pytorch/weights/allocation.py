"""Gives a model that was shaped on the meta device its memory, uninitialised."""

from __future__ import annotations

import torch
from torch import nn


def allocate(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every parameter by an empty one of `dtype` on `device`; a parameter that is shared stays shared."""
    allocated: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in allocated:
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                allocated[id(parameter)] = nn.Parameter(empty, requires_grad=False)
            setattr(module, name, allocated[id(parameter)])
