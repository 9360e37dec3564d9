"""The products of weights in each form on a GPU, in one line, as the code says that chooses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.policies import Weight, policy_for
from nanoserve.adapters.pytorch.cuda.workspace import MOST_SKINNY_ROWS, MOST_WIDENED_ROWS, most_skinny_rows
from nanoserve.adapters.pytorch.devices import default_dtype
from nanoserve.adapters.pytorch.layers.product import Mixture
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.weights.keeping import keep
from nanoserve.kernels.experts.launch import list_ways
from nanoserve.kernels.forms import FORMS, FP8
from nanoserve.kernels.linear.tuning_tiles import MOST_PACKED_ROWS

_SHAPES = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
"""Products of an 8B model, for a device without a model."""
_MOST_TOKENS = 8192
"""Mixtures change nothing with more."""


def told_products(model: DecoderModel, *, invariant: bool) -> dict[str, str]:
    """The products of a model's weights, by the names of their forms; experts have names of their own."""
    some, matrices = model.embedding.weight, [each.linear.matrix for each in model.products()]
    most = most_skinny_rows(model, some.dtype)
    return _told([*matrices, *model.mixtures()], some.dtype, some.device, most, invariant=invariant)


def told_forms(dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """The products of each form that there is, in a model with nothing else."""
    found: dict[str, str] = {}
    for form in (None, *FORMS.values()):
        with torch.device("meta"), default_dtype(dtype):
            linears = [Linear(columns, rows) for rows, columns in _SHAPES]
        for each in linears:
            if form is not None:
                keep(each, "weight", form)
        most = MOST_WIDENED_ROWS if isinstance(form, FP8) else MOST_SKINNY_ROWS
        found |= _told([each.matrix for each in linears], dtype, device, most, invariant=False)
    return found


def _told(
    weights: Iterable[Weight],
    dtype: torch.dtype,
    device: torch.device,
    most_skinny: int,
    *,
    invariant: bool,
) -> dict[str, str]:
    many, row = ManyRows(invariant=invariant), torch.empty(1, 1, dtype=dtype, device=device)
    found: dict[str, dict[int, dict[str, None]]] = {}
    starts = {2, most_skinny + 1, *range(1, MOST_PACKED_ROWS + 65, 64)}
    for each in weights:
        matrix = each.experts.gate_up if isinstance(each, Mixture) else each
        name = str(dtype).removeprefix("torch.") if isinstance(matrix, Tensor) else matrix.form.name
        counts = starts
        if isinstance(each, Mixture):
            how: dict[str, Any] = {"dtype": dtype, "device": device, "invariant": invariant}
            name, slots = f"experts in {name}", each.routing.slots
            counts = starts | list_ways(each.experts, slots, _MOST_TOKENS, **how)
        for rows in counts:
            policy = policy_for(rows, many, most_skinny)
            ways = found.setdefault(name, {}).setdefault(rows, {})
            ways[policy.told(each, row.expand(rows, 1))] = None
    return {name: _in_runs(ways) for name, ways in found.items()}


def _in_runs(ways: Mapping[int, Iterable[str]]) -> str:
    """One line of what is told from each number of rows on; between the first and the last of those where shapes differ, all that is."""
    differ = [rows for rows, told in ways.items() if len([*told]) > 1]
    between = range(min(differ), max(differ) + 1) if differ else range(0)
    all_of_them = dict.fromkeys(told for rows in sorted({*ways} & {*between}) for told in ways[rows])
    runs: list[tuple[int, str]] = []
    for rows in sorted(ways):
        told = f"{' or '.join(all_of_them)}, by shape" if rows in between else "".join(ways[rows])
        if not runs or runs[-1][1] != told:
            runs.append((rows, told))
    ends = [first - 1 for first, _ in runs[1:]]
    spans = [
        f"{first} to {last}" if last > first else f"{first}"
        for (first, _), last in zip(runs, ends, strict=False)
    ]
    spans.append("more" if ends else "all")
    return "; ".join(f"{rows}: {told}" for rows, (_, told) in zip(spans, runs, strict=True))
