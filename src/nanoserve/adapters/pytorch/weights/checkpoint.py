"""Copies the tensors of a checkpoint, safetensors or GGUF, to where a model wants them, in one pass over its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import CPU
from nanoserve.adapters.pytorch.parallel.splitting import Slices, part_of
from nanoserve.adapters.pytorch.weights.gguf_file import PackedTensor, is_gguf, packed_tensors, unpack
from nanoserve.adapters.pytorch.weights.integers import PackedMatrices
from nanoserve.adapters.pytorch.weights.mxfp4 import PackedStacks
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, no_place, stored_tensors
from nanoserve.adapters.pytorch.weights.scales import ACTIVATION_SCALES, EIGHT_BITS, Scales
from nanoserve.adapters.pytorch.weights.staging import Lane, lanes_between, pieces_of, transfer
from nanoserve.kernels.forms import Form
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Packing

BUFFERS = ("rotary_emb.inv_freq",)
"""Name endings of tensors that old checkpoints carry though they follow from the config."""

BASES = ("model", "bert", "roberta")
"""Names of the model beside a head in checkpoints."""
OLD_NORMS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of weights and biases of norms in the first checkpoints of BERT."""

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes of stored weights, besides 8-bit floats with scales; integers mean nothing without their quantizer."""

Stacks = Mapping[str, tuple[Tensor, Sequence[str]]]
"""Tensors that a checkpoint may hold instead of several: each one's destination, and the names of those."""


@attrs.frozen(eq=False)
class Destinations:
    """Where the tensors of a checkpoint go.

    Attributes:
        tensors: by the names that a checkpoint has for them; each is converted to the dtype that it has here.
        tied_head: whether the embedding is the head, so that a checkpoint's own copy of it is left out.
        stacks: what a checkpoint may hold in place of several.
        unused: beginnings of names that are left out.
        scale_targets: by name, where the scales go of tensors that stay as they are stored (`weights/keeping.py`).
        slices: a rank's parts of tensors, of which plain numbers alone are read; None where it has the whole model.
        made: by name, the form that plain tensors with a scale target are put into, one at a time, so that no two are there in both.
    """

    tensors: Mapping[str, Tensor]
    tied_head: bool = False
    stacks: Stacks = MappingProxyType({})
    unused: tuple[str, ...] = ()
    scale_targets: Mapping[str, Tensor] = MappingProxyType({})
    slices: Slices | None = None
    made: Mapping[str, Form] = MappingProxyType({})

    def own(self) -> Mapping[str, Tensor]:
        """The tensors by name, with those that are a stack."""
        return {**self.tensors, **{name: tensor for name, (tensor, _) in self.stacks.items()}}

    def parts(self, forms: Mapping[str, Form | None] = MappingProxyType({})) -> Slices:
        """The parts of a checkpoint's tensors; of those that are packed at load the shapes. `forms` are those of tensors that are repacked."""
        if self.slices is not None:
            return self.slices
        wholes = dict(self.tensors)
        for name in self.scale_targets:
            if (form := self.made.get(name, forms.get(name))) is not None:
                width = form.width(wholes[name].shape[1])
                wholes[name] = torch.empty(len(wholes[name]), width, device="meta")
        stacks = dict(self.stacks)
        for name, (tensor, parts) in self.stacks.items():
            if (form := self.made.get(parts[0])) is not None:
                size = *tensor.shape[:-1], form.width(tensor.shape[-1])
                stacks[name] = torch.empty(size, device="meta"), parts
        return Slices(0, 1, wholes, stacks, {})

    def ignored(self, *, alone: bool = False) -> tuple[str, ...]:
        """The ends of names that are left out; a tied head that is `alone`, without an embedding, is not."""
        return (*BUFFERS, *ACTIVATION_SCALES, *((HEAD,) if self.tied_head and not alone else ()))

    def here(self, found: Iterable[StoredTensor], embedding: str = "") -> list[StoredTensor]:
        """The tensors that have a place here, or ought to, by their names here."""
        parts = self.parts()
        known = self.tensors.keys() | self.stacks.keys() | parts.others
        here: dict[str, StoredTensor] = {}
        for each in found:
            name = name_here(each.name, known, embedding)
            if not parts.is_elsewhere(name) and (name in known or not name.startswith(self.unused)):
                _check_once(here.setdefault(name, each), each)
        return [attrs.evolve(each, name=name) for name, each in here.items()]


def load_checkpoint(
    folder: str,
    into: Destinations,
    *,
    lanes: Sequence[Lane] | None = None,
    packing: Packing | None = None,
    read: bool = True,
) -> None:
    """Fill every destination with the tensor of its name, or with its part of a stack.

    All tensors are checked before any is read. Those on the host are copied once from the mapped file, so memory peaks near the size of the
    model; those on a GPU are read by several threads through pinned buffers; `lanes` sets other ways to go there. Those of a GGUF file are
    dequantized on the host, piece by piece, and 8-bit floats, MXFP4 and integers where they are when they have arrived
    (`weights/scales.py`, `weights/mxfp4.py`, `weights/integers.py`, `weights/floats.py`). A tied head is read where the embedding is missing:
    then it is that, too, as in transformers. Without `read` names and shapes are checked against destinations that need no memory.

    Raises:
        ModelLoadError: a file is missing or corrupt; a tensor is missing, left over, of another shape or no float.
    """
    is_alone = into.tied_head and _outer(folder).keys() == {HEAD}
    embedding = next(each for each in into.tensors if each.endswith(EMBEDDING)) if is_alone else ""
    ignored, own = into.ignored(alone=is_alone), into.own()
    of_file = list(packed_tensors(Path(folder), ignored)) if is_gguf(Path(folder)) else []
    slices = into.parts({each.name: each.form for each in of_file})
    if of_file:
        _load_gguf(of_file, into, slices, read=read)
        return
    tensors = _without_idle(into.here(tensors_in(folder, ignored), embedding), own)
    packed = (
        each.name in PACKED_HEADS or (each.name == HEAD and each.dtype not in DTYPES) for each in tensors
    )
    if HEAD in into.made and any(packed):
        raise ModelLoadError(f"{folder}: its head is stored quantized; leave quantize_head out")
    scales = Scales()
    packed_forms = (PackedStacks(tensors), PackedMatrices(tensors, packing))
    others = (stored for stored in tensors if not any(each.has(stored) for each in packed_forms))
    weights = [stored for stored in others if not scales.take(stored)]
    filled: dict[str, StoredTensor] = {}
    for each in packed_forms:
        for name, some in each.names:
            _check_once(filled.setdefault(name, some), some)
    plain = _matches(weights, slices, filled)
    _check_all(folder, slices, filled)
    for each in packed_forms:
        each.check(slices.wholes)
    for stored in plain:
        scales.want(stored, own[stored.name])
    scales.check()
    if read:
        if lanes is None:
            device = next((each.device for each in into.tensors.values()), CPU)
            lanes = () if device.type == "cpu" else lanes_between(CPU, device)
        _fill_or_make(plain, into, lanes)
        scales.apply(into.scale_targets, slices)
        for each in packed_forms:
            each.apply(into.tensors, into.scale_targets, slices)


def overlay(tensors: Iterable[StoredTensor], into: Destinations, lanes: Sequence[Lane] = ()) -> set[str]:
    """Fill the destinations of some plain tensors; returns their names. Otherwise as `load_checkpoint`, and checked before any is read."""
    found = into.here(each for each in tensors if not each.name.endswith(into.ignored()))
    filled: dict[str, StoredTensor] = {}
    plain = _matches(found, into.parts(), filled)
    for stored in plain:
        if stored.dtype is EIGHT_BITS:
            message = f"{stored.file}: tensor {stored.name!r} is stored quantized: store it as floats"
            raise ModelLoadError(message)
    _fill_or_make(plain, into, lanes)
    return filled.keys() & into.tensors.keys()


def _fill_or_make(plain: Sequence[StoredTensor], into: Destinations, lanes: Sequence[Lane]) -> None:
    """Copy plain tensors, or a rank's parts of them, and put those that have a target for scales into the form."""
    own, slices = into.own(), into.parts()
    plain = [each for stored in plain for each in _matrices(stored, into, slices)]
    copied = [stored for stored in plain if stored.name not in into.made]
    if slices.size == 1:
        _fill([(stored, own[stored.name]) for stored in copied], lanes)
    else:
        for stored in copied:
            slices.fill(stored.name, stored.data, own[stored.name])
    for stored in plain:
        if stored.name in into.made:
            _make(stored, into, slices, lanes)


def _matrices(stored: StoredTensor, into: Destinations, slices: Slices) -> list[StoredTensor]:
    """A tensor, or of a stack that is put into a form those matrices that have a place here."""
    names = slices.whole_stacks.get(stored.name, (None, ()))[1]
    in_form = not into.made.keys().isdisjoint(names)
    return [each for each in stored.cut(names) if each.name in into.made] if in_form else [stored]


def _fill(matches: Sequence[tuple[StoredTensor, Tensor]], lanes: Sequence[Lane]) -> None:
    if lanes:
        transfer([piece for match in matches for piece in pieces_of(*match)], lanes)
        return
    for stored, destination in matches:
        destination.copy_(stored.data)


def _without_idle(found: Sequence[StoredTensor], own: Mapping[str, Tensor]) -> list[StoredTensor]:
    """All but the biases of zeros that AutoGPTQ wrote beside matrices whose layers have none."""
    packed = (each.name for each in found if each.name.endswith(".qweight"))
    biases = {f"{name.removesuffix('qweight')}bias" for name in packed} - own.keys()
    return [each for each in found if each.name not in biases or bool(each.data.any())]


def name_here(stored: str, known: Collection[str], embedding: str = "") -> str:
    """The name that a tensor has beside a head: that of a model without one is shorter. A head has that of the `embedding` it is."""
    written = stored
    for old, new in OLD_NORMS.items():
        written = written.removesuffix(old) + new if written.endswith(old) else written
    matrix = f"{written.rpartition('.')[0]}.weight"  # parts of a packed one go where it would
    names = [f"{base}.{written}" for base in BASES for each in (written, matrix) if f"{base}.{each}" in known]
    if embedding and stored.endswith(HEAD):
        return embedding
    return next(iter(names), written if written in known else stored)


def _load_gguf(packed: Sequence[PackedTensor], into: Destinations, slices: Slices, *, read: bool) -> None:
    """Dequantize or repack on the host: of a rank's parts one whole tensor at a time is there."""
    here = [each for each in packed if not slices.is_elsewhere(each.name)]
    own, filled = into.own(), dict[str, PackedTensor]()
    every, targets = _matches(here, slices, filled), into.scale_targets
    _check_all(str(here[0].file), slices, filled)
    for each in [each for each in every if read and each.name in into.made]:
        unpack([(each, (whole := torch.empty(each.shape), None))])
        _make(StoredTensor(each.file, each.name, whole, 0, in_memory=True), into, slices, ())
    found = [each for each in every if each.name not in into.made]
    if read and slices.size == 1:
        unpack([(each, (own[each.name], targets.get(each.name))) for each in found])
    elif read:
        for each in found:
            target, form = targets.get(each.name), each.form
            if target is None or form is None:
                whole = torch.empty(each.shape)
                unpack([(each, (whole, None))])
                slices.fill(each.name, whole, own[each.name])
                continue
            rows, columns = each.shape
            numbers = torch.empty(rows, form.stored_width(columns), dtype=form.dtype)
            words = torch.empty(rows, form.scale_count(columns), dtype=form.scale_dtype)
            unpack([(each, (numbers, words))])
            slices.fill(each.name, numbers, own[each.name])
            slices.fill(each.name, words, target)


def _make(stored: StoredTensor, into: Destinations, slices: Slices, lanes: Sequence[Lane]) -> None:
    """Put a plain tensor, or a rank's part of it, into its form, and its scales beside it."""
    form = into.made[stored.name]
    destination, scales = into.tensors[stored.name], into.scale_targets[stored.name]
    own = destination.shape[0], form.width(destination.shape[1])
    if own == tuple(stored.shape):
        whole = torch.empty(own, dtype=stored.dtype, device=destination.device)
        _fill([(stored, whole)], lanes)
        pieces = [(whole, slice(None))]
    else:
        cuts = slices.cuts(stored.name, stored.shape, own)
        pieces = [
            (part_of(stored.data, dim, source).to(destination.device), slice(None) if dim else place)
            for dim, source, place in cuts
        ]
    for piece, place in pieces:
        numbers, factors = form.quantize(piece.float())
        destination[place].copy_(numbers)
        scales[place].copy_(factors)


_StoredT = TypeVar("_StoredT", StoredTensor, PackedTensor)


def _matches(found: Iterable[_StoredT], slices: Slices, filled: dict[str, _StoredT]) -> list[_StoredT]:
    """The tensors that have a place, as whole ones; they join those that have `filled` one, by its name."""
    matches = []
    for stored in found:
        alone = slices.wholes.get(stored.name), (stored.name,)
        destination, names = slices.whole_stacks.get(stored.name, alone)
        if destination is None:
            raise no_place(stored)
        _check(stored, destination)
        for name in names:
            _check_once(filled.setdefault(name, stored), stored)
        matches.append(stored)
    return matches


def _check_all(origin: str, slices: Slices, filled: Collection[str]) -> None:
    if missing := [name for name in slices.wholes if name not in filled]:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ModelLoadError(
            f"{origin}: the checkpoint lacks {len(missing)} tensors that its config asks for: {names}: "
            "download it again, or take the config that belongs to it"
        )


def _check_once(one: _StoredT, other: _StoredT) -> None:
    if one is not other:
        both = f"{one.file}: {one.name!r} and {other.file}: {other.name!r}"
        raise ModelLoadError(f"{both} are one weight: leave one of them out")


def _check(stored: StoredTensor | PackedTensor, destination: Tensor) -> None:
    file, name = stored.file, stored.name
    if stored.shape != destination.shape:
        found, wanted = list(stored.shape), list(destination.shape)
        raise ModelLoadError(
            f"{file}: tensor {name!r} has shape {found}, but the config asks for {wanted}: "
            "take the config that belongs to this checkpoint"
        )
    if stored.dtype not in DTYPES and stored.dtype is not EIGHT_BITS:
        raise ModelLoadError(
            f"{file}: tensor {name!r} is {stored.dtype}: quantized checkpoints are not supported"
        )


EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
PACKED_HEADS = ("lm_head.weight_packed", "lm_head.qweight")
"""By which a checkpoint shows that its head was quantized though it is tied."""


def check_embedding(folder: str, vocab_size: int, hidden_size: int) -> None:
    """Raise `ModelLoadError` if a config names another vocabulary than its checkpoint has, before anything is made for it."""
    for stored in tensors_in(folder, wanted=(EMBEDDING,)):
        _check(stored, torch.empty(vocab_size, hidden_size, device="meta"))


def is_packed(folder: str) -> bool:
    """True if a checkpoint of safetensors holds tensors that are no plain floats."""
    return any(each.dtype not in DTYPES for each in tensors_in(folder))


def has_own_head(folder: str) -> bool:
    """True if a checkpoint holds a head that is not its embedding; transformers then computes with both, whatever the config says."""
    outer = _outer(folder)
    embedding, head = map(outer.get, (EMBEDDING, HEAD))
    if embedding is not None and any(each in outer for each in PACKED_HEADS):
        return True
    if embedding is None or head is None:
        return False
    if embedding.shape != head.shape or head.dtype not in DTYPES:
        return True
    rows = zip(torch.split(embedding, ROWS), torch.split(head, ROWS), strict=True)
    return not all(torch.equal(ours, theirs.to(ours.dtype)) for ours, theirs in rows)


def _outer(folder: str) -> dict[str, Tensor]:
    """The embedding and head of a checkpoint by the ends of their names; nothing of a GGUF file, whose config says so."""
    ends = (EMBEDDING, HEAD, *PACKED_HEADS)
    found = tensors_in(folder, wanted=ends)
    return {end: stored.data for stored in found for end in ends if stored.name.endswith(end)}


ROWS = 4096
"""Compared at once, so that two that differ are mostly told apart by their beginning."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def tensors_in(
    folder: str, ignored: tuple[str, ...] = (), wanted: tuple[str, ...] = ("",)
) -> Iterator[StoredTensor]:
    """As `stored_tensors`, of all files of a checkpoint; nothing of a GGUF file, whose config follows from it."""
    for file in [] if is_gguf(Path(folder)) else checkpoint_files(Path(folder)):
        yield from stored_tensors(file, ignored, wanted)


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint, in the order of their names.

    Raises:
        ModelLoadError: there is no checkpoint, its index cannot be read, or a shard that it names is missing.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise ModelLoadError(f"{folder}: holds neither {SINGLE} nor {INDEX}: is this a model folder?")
    shards = _shards(index)
    for shard in shards:
        if not shard.is_file():
            raise ModelLoadError(f"{shard}: the shard is missing, though {INDEX} names it: download it again")
    return shards


def _shards(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = [Path(name) for name in sorted(set(weight_map.values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{index}: not a readable index of shards ({error!r}): download it again"
        ) from error
    for name in names:  # by name alone: the files of a download are links to where it keeps them
        if name.is_absolute() or ".." in name.parts:
            raise ModelLoadError(f"{index}: names {str(name)!r:.200}, a way out of the model's folder")
    return [index.parent / name for name in names]
