"""Checkpoints of 4- and 8-bit integers, in three layouts: AWQ's, GPTQ's, and the packed one of compressed-tensors.

A matrix [N, K] is several tensors behind one name. AWQ (Lin et al. 2023, as AutoAWQ writes it) has `qweight` [K, N / 8], `qzeros` [groups, N / 8] and
`scales` [groups, N], and puts column 0 2 4 6 1 3 5 7 of eight into a word. GPTQ (Frantar et al. 2022, as AutoGPTQ writes it) packs
along K: `qweight` [K bits / 32, N], `qzeros` [groups, N bits / 32], `scales` [groups, N], and `g_idx` [K], the group of each column; its first format
stores zero points less one. compressed-tensors has `weight_packed` [N, K bits / 32], `weight_scale` [N, groups] and, where they are
not the middle, `weight_zero_point` [N bits / 32, groups]; its plain one, made for
integer activations, has `weight` int8 [N, K] and `weight_scale` [N, groups]. Weights are kept as integers where kernels have their groups, or else become
(q - zero) * scale as they are loaded; so do those whose columns lie in groups out of their order (`desc_act`), because no layer before could give its output in that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.splitting import Slices
from nanoserve.adapters.pytorch.weights.floats import SCALES_OF_FLOATS, FloatMatrix
from nanoserve.adapters.pytorch.weights.safetensors_file import FLOATS, StoredTensor, no_place, not_finite
from nanoserve.adapters.pytorch.weights.staging import brought
from nanoserve.kernels.forms import Form, Int4, Int8
from nanoserve.kernels.forms.integers import GROUPS, Integers
from nanoserve.kernels.forms.layout import ROW
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Packing

_WORDS, _PLACES, _FLOATS = (torch.int32,), (torch.int32, torch.int64), tuple(FLOATS.values())
_BESIDE: Final = {
    ("qweight", torch.int32): {"qzeros": _WORDS, "scales": _FLOATS, "g_idx": _PLACES},
    ("weight_packed", torch.int32): {
        "weight_scale": _FLOATS,
        "weight_zero_point": _WORDS,
        "weight_g_idx": _PLACES,
        "weight_shape": _PLACES,
    },
    ("weight", torch.int8): {"weight_scale": _FLOATS, "weight_zero_point": (torch.int8,)},
    **dict.fromkeys((("weight_packed", torch.uint8), ("weight", torch.uint8)), SCALES_OF_FLOATS),
}
"""The tensors that mark a packed matrix, by the last part of their names and their dtypes, and all that may be beside them, with theirs."""
_VECTORS: Final = ("g_idx", "weight_g_idx", "weight_shape")
"""Those that are no matrices."""
_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each of eight columns in a word of AWQ."""
_WORD: Final = 32


@attrs.frozen(eq=False)
class Matrix:
    """One packed matrix: its tensors by the last part of their names, and what follows from their shapes.

    Attributes:
        name: of the weight that it stands for.
        bits: of an integer.
        group: neighbours of a row that share a scale, or `ROW`.
    """

    name: str
    parts: Mapping[str, StoredTensor]
    bits: int
    shape: tuple[int, int]
    group: int
    packing: Packing | None

    @property
    def form(self) -> Integers | None:
        """The form that it can be kept in."""
        form = Int4(self.group) if self.bits == 4 else Int8(self.group)
        fits = self.group in GROUPS and self.shape[1] % form.multiple == 0
        return form if fits and self._order() is None else None

    def integers(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Integers uint8 [N, K], scales float32 [N, groups] and zero points int32 [N, groups]; raises `ModelLoadError` for scales that are no numbers."""
        (rows, columns), bits = self.shape, self.bits
        if "weight" in self.parts:
            numbers, scales = self._read("weight", device).int() + 128, self._read("weight_scale", device)
            zeros = torch.full(scales.shape, 128, dtype=torch.int32, device=device)
            if "weight_zero_point" in self.parts:
                zeros = self._read("weight_zero_point", device).int() + 128
        elif self.packing is None:
            packed, scales = self._read("weight_packed", device), self._read("weight_scale", device)
            numbers = _unpacked(packed, bits)[:, :columns]
            zeros = torch.full(scales.shape, 1 << bits - 1, dtype=torch.int32, device=device)
            if "weight_zero_point" in self.parts:
                zeros = _unpacked(self._read("weight_zero_point", device).t(), bits)[:, :rows].t()
        else:
            packed, scales = self._read("qweight", device), self._read("scales", device).t()
            zeros = _unpacked(self._read("qzeros", device), bits)[:, :rows].t()
            if self.packing.library == "awq":
                order = torch.tensor(_AWQ_ORDER, device=device)
                numbers, zeros = (_in_order(each, order) for each in (_unpacked(packed, bits).t(), zeros))
            else:
                numbers = _unpacked(packed.t(), bits)[:, :columns]
                zeros = zeros + (self.packing.library == "gptq")
        if not scales.isfinite().all():
            raise not_finite(self._scales)
        return numbers.to(torch.uint8), scales.float(), zeros.to(torch.int32)

    def widened(self, device: torch.device) -> Tensor:
        """(q - zero) * scale, float32 [N, K]."""
        numbers, scales, zeros = self.integers(device)
        order = self._order()
        if order is None:
            order = torch.arange(self.shape[1]) // self.group
        order = order.to(device).long()
        return (numbers.float() - zeros.float()[:, order]) * scales[:, order]

    def _read(self, part: str, device: torch.device) -> Tensor:
        return self.parts[part].data.to(device)

    @property
    def _scales(self) -> StoredTensor:
        return self.parts["weight_scale" if self.packing is None else "scales"]

    def _order(self) -> Tensor | None:
        """The group of each column, where they are not in their order."""
        stored = self.parts.get("g_idx", self.parts.get("weight_g_idx"))
        if stored is None or bool((stored.data == torch.arange(self.shape[1]) // self.group).all()):
            return None
        groups = self._scales.shape[-1 if self.packing is None else 0]
        if int(stored.data.min()) < 0 or int(stored.data.max()) >= groups:
            raise ModelLoadError(
                f"{stored.file}: {stored.name!r} names groups that are not there: is it damaged?"
            )
        return stored.data


class PackedMatrices:
    """The packed matrices of a checkpoint, those of 4-bit floats too (`weights/floats.py`), by the names of their weights."""

    def __init__(self, found: Iterable[StoredTensor], packing: Packing | None) -> None:
        """Gather them of all tensors; raises `ModelLoadError` if one lacks a part, or parts do not fit together."""
        tensors = {stored.name: stored for stored in found}
        self._taken: set[str] = set()
        self._matrices: dict[str, Matrix | FloatMatrix] = {}
        self.names: list[tuple[str, StoredTensor]] = []
        """The name of each one's weight, and its numbers."""
        for name, stored in tensors.items():
            stem, _, last = name.rpartition(".")
            beside, is_floats = _BESIDE.get((last, stored.dtype)), stored.dtype is torch.uint8
            if beside is None:
                continue
            parts = {each: tensors[f"{stem}.{each}"] for each in beside if f"{stem}.{each}" in tensors}
            needed = ("qzeros", "scales") if last == "qweight" else ("weight_scale",)
            for each in (*needed, *(packing.needs if packing and not is_floats else ())):
                if each not in parts:
                    raise ModelLoadError(
                        f"{stored.file}: {name!r} has no {stem}.{each} in any file of the checkpoint: download it again"
                    )
            for each, part in parts.items():
                if part.dtype not in beside[each]:
                    raise ModelLoadError(
                        f"{part.file}: {part.name!r} is {part.dtype}, which no library writes: is it damaged?"
                    )
            weight = f"{stem}.weight"
            self.names.append((weight, stored))
            parts = {last: stored, **parts}
            made = FloatMatrix.of(parts) if is_floats else _matrix(weight, parts, packing)
            self._matrices[weight] = made
            self._taken |= {each.name for each in parts.values()}

    @property
    def forms(self) -> dict[str, Form]:
        """The forms of those that can be kept packed."""
        return {name: form for name, each in self._matrices.items() if (form := each.form) is not None}

    def has(self, stored: StoredTensor) -> bool:
        """True if a tensor is a part of one."""
        return stored.name in self._taken

    def check(self, destinations: Mapping[str, Tensor]) -> None:
        """Raise `ModelLoadError` if a matrix has no place, or one of another shape."""
        for name, each in self._matrices.items():
            some = next(iter(each.parts.values()))
            if name not in destinations:
                raise no_place(some)
            wanted, form = destinations[name].shape, each.form
            found = list(each.shape)
            if form is not None and destinations[name].dtype is form.dtype:
                found = [each.shape[0], form.stored_width(each.shape[1])]
            if found != list(wanted):
                raise ModelLoadError(
                    f"{some.file}: {some.name!r} stands for a weight of {list(each.shape)}, but the config asks for another "
                    f"({list(wanted)}): take the config that belongs to this checkpoint"
                )

    def apply(
        self, destinations: Mapping[str, Tensor], targets: Mapping[str, Tensor], slices: Slices
    ) -> None:
        """Fill the destinations: with integers if there is a target for scales, else with the widened weights."""
        numbers = (next(iter(each.parts.values())) for each in self._matrices.values())
        near = brought(numbers, next(iter(destinations.values())).device)  # which are most of their bytes
        for name, stored, first in zip(self._matrices, self._matrices.values(), near, strict=True):
            matrix = attrs.evolve(stored, parts={**stored.parts, next(iter(stored.parts)): first})
            destination, form = destinations[name], matrix.form
            if name in targets and form is not None and isinstance(matrix, Matrix):
                _keep(matrix, form, destination, targets[name], slices)
                continue
            slices.fill(name, matrix.widened(destination.device), destination)


def _keep(matrix: Matrix, form: Integers, destination: Tensor, target: Tensor, slices: Slices) -> None:
    """Pack a matrix, or a rank's part of it, which cuts no group."""
    numbers, scales, zeros = matrix.integers(destination.device)
    if int(zeros.max()) > 255:
        raise ModelLoadError(f"{matrix.parts['qzeros'].name!r} has zero points that are not bytes")
    words = form.scale_words(scales, zeros)
    own = destination.shape[0], form.width(destination.shape[1])
    for dim, source, place in slices.cuts(matrix.name, matrix.shape, own):
        if dim:
            groups = slice(source.start // matrix.group, source.stop // matrix.group)
            destination.copy_(form.pack(numbers[:, source]))
            target.copy_(words if matrix.group == ROW else words[:, groups])
        else:
            destination[place].copy_(form.pack(numbers[source]))
            target[place].copy_(words[source])


def _matrix(name: str, parts: Mapping[str, StoredTensor], packing: Packing | None) -> Matrix:
    """Raises `ModelLoadError`, with a tensor's name, where shapes do not fit together."""
    shapes = {each: list(part.shape) for each, part in parts.items()}
    packed, *_ = parts.values()
    unfitting = ModelLoadError(
        f"{packed.file}: the parts of {name!r} have shapes that do not fit together, or to quantization_config: {shapes}"
    )
    dims = all(len(shape) == 1 + (each not in _VECTORS) for each, shape in shapes.items())
    if not dims or shapes.get("weight_shape", [2]) != [2]:
        raise unfitting
    if "weight" in parts:
        bits, (rows, columns) = 8, packed.shape
        groups = parts["weight_scale"].shape[1]
        wanted = {each: [rows, groups] for each in ("weight_scale", "weight_zero_point")}
        fitting, group = groups > 0, _group_of(columns, groups)
    elif "weight_packed" in parts:
        rows, groups = packed.shape[0], parts["weight_scale"].shape[1]
        columns = int(parts["weight_shape"].data[1]) if "weight_shape" in parts else 0
        bits = _WORD * packed.shape[1] // columns if columns > 0 else 4
        columns = columns or packed.shape[1] * _WORD // bits
        wanted = {"weight_scale": [rows, groups], "weight_zero_point": [-(-rows * bits // _WORD), groups]}
        wanted |= {"weight_g_idx": [columns]}
        fitting = groups > 0 and packed.shape[1] == -(-columns * bits // _WORD)
        group = _group_of(columns, groups)
    else:
        if packing is None or packing.library == "compressed-tensors":
            raise ModelLoadError(
                f"{packed.file}: {name!r} is packed, and no quantization_config says how: config.json must have it, which older "
                "libraries wrote into a file of its own"
            )
        bits, awq = packing.bits, packing.library == "awq"
        groups, rows = parts["scales"].shape
        columns = packed.shape[0] * (1 if awq else _WORD // bits)
        group = _group_in(packing, columns)
        fitting = packed.shape[1] == (rows * bits // _WORD if awq else rows)
        fitting &= groups == (1 if group == ROW else -(-columns // group))
        wanted = {"qzeros": [groups, -(-rows * bits // _WORD)], "g_idx": [columns]}
    if bits not in (4, 8):
        raise ModelLoadError(
            f"{packed.file}: {packed.name!r} holds integers of {bits} bits; readable are 4 and 8"
        )
    if packing is not None:
        fitting &= (bits, group) == (packing.bits, _group_in(packing, columns))
    if not fitting or any(shapes.get(each, shape) != shape for each, shape in wanted.items()):
        raise unfitting
    return Matrix(name, parts, bits, (rows, columns), group, packing if "qweight" in parts else None)


def _group_in(packing: Packing, columns: int) -> int:
    """Neighbours of a row of so many numbers that share a scale."""
    return ROW if packing.group is None or packing.group >= columns else packing.group


def _group_of(columns: int, groups: int) -> int:
    """Neighbours of a row that share one of so many scales."""
    return ROW if groups <= 1 else 1 << (-(-columns // groups) - 1).bit_length()


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Integers [R, C 32 / bits] of int32 [R, C], the lowest bits first."""
    shifts = torch.arange(0, _WORD, bits, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (1 << bits) - 1).flatten(-2)


def _in_order(rows: Tensor, order: Tensor) -> Tensor:
    """AWQ's columns, here rows, in their order."""
    return rows.reshape(-1, 8, rows.shape[-1])[:, order].flatten(0, 1)
