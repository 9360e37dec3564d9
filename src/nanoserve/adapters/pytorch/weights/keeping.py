"""Which weights of a model stay as its checkpoint stores them, and where their scales go.

A parameter may hold several tensors of a checkpoint, such as q, k and v, or the experts of a layer. It is kept as stored where all
of them come in one form and kernels can compute with that; others are widened as they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import Storable
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.weights.checkpoint import name_here, tensors_in
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf, packed_tensors
from nanoserve.adapters.pytorch.weights.integers import PackedMatrices
from nanoserve.adapters.pytorch.weights.mxfp4 import BLOCKS
from nanoserve.adapters.pytorch.weights.scales import EIGHT_BITS, in_blocks, scaled_name
from nanoserve.kernels.forms import FORMS, FP8, Form
from nanoserve.kernels.forms.fp8 import BLOCK
from nanoserve.ports.model_spec import Packing, Stored

SCALES, FORM = "_scales", "_form"
"""Behind the name of a parameter that is kept, that of its scales' and of its form's."""


class Model(Protocol):
    """The part of a model that is used here."""

    @property
    def layers(self) -> Sequence[Sequence[Part]]:
        """For each layer its parts."""

    @property
    def filled(self) -> Mapping[str, Sequence[Part]]:
        """The parts of each layer that a checkpoint fills, by its name there."""

    @property
    def head(self) -> Any:
        """A linear layer, which is kept in a form where it is asked to be (`narrow_head`)."""

    def checkpoint_tensors(self) -> Mapping[str, Tensor]:
        """Every tensor that a checkpoint must hold, by its name there."""


def stored_forms(folder: str, model: Model, packing: Packing | None = None) -> dict[str, Form]:
    """The form of each tensor of a checkpoint that has one, by the name of its weight in the model; raises `ModelLoadError`."""
    if is_gguf(Path(folder)):
        return {each.name: each.form for each in packed_tensors(Path(folder)) if each.form is not None}
    found = list(tensors_in(folder))
    forms = PackedMatrices(found, packing).forms
    scales = {scaled_name(each.name): each for each in found}
    for stored in found:
        if stored.dtype is EIGHT_BITS:
            forms[stored.name] = FP8(BLOCK) if in_blocks(stored, scales.get(stored.name)) else FP8()
        elif stored.dtype is torch.uint8 and stored.name.endswith(BLOCKS):
            forms[stored.name.removesuffix(BLOCKS)] = FORMS["mxfp4"]
    names = model.checkpoint_tensors()
    return {name_here(name, names): form for name, form in forms.items()}


def keep_as_stored(model: Model, forms: Mapping[str, Form]) -> None:
    """Give every parameter that can stay as it is stored that form; to be called before there is any memory behind it.

    Args:
        model: on no device yet.
        forms: by name, of all tensors of the checkpoint that have one.
    """
    found: dict[int, set[Form | None]] = {}
    for name, tensor in model.checkpoint_tensors().items():
        found.setdefault(_memory(tensor), set()).add(forms.get(name))
    for group in _storables(model):
        kinds = set().union(*(found[_memory(getattr(module, name))] for module, name in group))
        form = kinds.pop()
        if form is not None and not kinds:
            if len(group) > 1 and isinstance(form, FP8):
                form = FP8(BLOCK)  # a shared expert is cut up, and with it rows and their scales
            for module, name in group:
                keep(module, name, form)


def keep_like(blank: Model, model: Model) -> None:
    """Give every parameter of a blank of the same shape the form that it has in a model; to be called before there is any memory behind it."""
    parts = zip(_parts(model), _parts(blank), strict=True)
    groups = (pair for each in parts for pair in zip(*(part.storable() for part in each), strict=False))
    for ours, theirs in groups:  # what a shared expert is cut from is a part of its group until it is cut
        module, name = ours[0]
        form: Form | None = getattr(module, name + FORM, None)  # what is packed for a CPU has none
        if form is not None:
            for module, name in theirs:
                keep(module, name, form)
    if model.head.weight_form is not None:
        narrow_head(blank, model.head.weight_form)


def narrow_head(model: Model, form: Form) -> None:
    """Give the head a form, and memory beside that of an embedding that it is tied to; to be called when all others have theirs, and before there is any memory behind it."""
    head = model.head
    head.weight = nn.Parameter(
        head.weight.new_empty(head.out_features, head.in_features), requires_grad=False
    )
    keep(head, "weight", form)


def forms_of(model: Model) -> list[Form | None]:
    """The form of every parameter that can have one, as kernels read it."""
    return [getattr(module, name + FORM, None) for group in _storables(model) for module, name in group]


def all_forms(model: Model, stored: Stored) -> dict[str, Form]:
    """The forms in which a checkpoint of this shape comes: experts in MXFP4, or everything in another one."""
    stacks = ("experts.gate_up_proj", "experts.down_proj")
    names = model.checkpoint_tensors()
    return {name: FORMS[stored] for name in names if stored != "mxfp4" or name.endswith(stacks)}


def note_blocks(model: Model) -> None:
    """Let kernels know where 8-bit floats have the scales of whole blocks, once all lie in their places."""
    for module, name in (each for group in _storables(model) for each in group):
        form, scales = getattr(module, name + FORM), getattr(module, name + SCALES)
        if isinstance(form, FP8) and form.group == BLOCK and scales.dim() == 2:
            first = scales[::BLOCK].repeat_interleave(BLOCK, 0)[: len(scales)]
            setattr(module, name + FORM, FP8(BLOCK, BLOCK if torch.equal(first, scales) else 1))


def scale_targets(model: Model) -> dict[str, Tensor]:
    """Where the scales of each tensor go that is kept as stored, by the tensor's name: a row of scales for each of its rows."""
    scales_of = {_memory(numbers): scales for _, numbers, scales in kept(model)}
    targets = {}
    for name, tensor in model.checkpoint_tensors().items():
        if _memory(tensor) in scales_of:
            scales = scales_of[_memory(tensor)].flatten(0, -2)
            width = tensor.shape[-1]
            first = tensor.storage_offset() // width
            targets[name] = scales[first : first + tensor.numel() // width]
    return targets


def kept_forms(model: Model) -> dict[str, Form]:
    """The form of each tensor that is kept in one, by its name."""
    forms = {_memory(numbers): form for form, numbers, _ in kept(model)}
    names = model.checkpoint_tensors().items()
    return {name: forms[_memory(tensor)] for name, tensor in names if _memory(tensor) in forms}


def kept_bytes(model: Model) -> dict[str, int]:
    """The memory of weights that are kept as stored, scales included, by the name of their form."""
    found: dict[str, int] = {}
    for form, *tensors in kept(model):
        found[form.name] = found.get(form.name, 0) + sum(each.nbytes for each in tensors)
    return found


def kept(model: Model) -> Iterator[tuple[Form, Tensor, Tensor]]:
    """Each parameter that is kept as stored: its form, its numbers and their scales."""
    for module, name in (each for group in _storables(model) for each in group):
        form = getattr(module, name + FORM)
        if form is not None:
            yield form, getattr(module, name), getattr(module, name + SCALES)


def _storables(model: Model) -> Iterator[Storable]:
    for part in _parts(model):
        yield from part.storable()
    if model.head.weight_form is not None:
        yield [(model.head, "weight")]


def _parts(model: Model) -> Iterator[Part]:
    return (part for parts in model.filled.values() for part in parts)


def _memory(tensor: Tensor) -> int:
    """The identity of the memory that views of one parameter share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def keep(module: nn.Module, name: str, form: Form) -> None:
    """Put a parameter into a form, its scales and the form's name beside it; none of them is filled."""
    plain: Tensor = getattr(module, name)
    *others, width = plain.shape

    def empty(size: int, dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(*others, size, dtype=dtype, device=plain.device), requires_grad=False)

    setattr(module, name, empty(form.stored_width(width), form.dtype))
    setattr(module, name + SCALES, empty(form.scale_count(width), form.scale_dtype))
    setattr(module, name + FORM, form)
