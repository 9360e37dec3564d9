"""New weights for a running model, by the way on which its first ones came.

A blank model of the same shape is filled in host memory, arranged and packed like the first one, and checked; then each of its tensors is
copied into the one that the running model holds in its place. So every form that weights are kept in is made anew, addresses stay, and
nothing is written before all is known to be right. It costs host memory for the model once more while it lasts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.models import DecoderModel, blank_like, finish_like
from nanoserve.adapters.pytorch.weights.checkpoint import checkpoint_files, has_own_head, overlay
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf
from nanoserve.adapters.pytorch.weights.identity import weights_digest
from nanoserve.adapters.pytorch.weights.keeping import scale_targets
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, stored_tensors
from nanoserve.adapters.pytorch.weights.staging import MOST_LANES, HostLane
from nanoserve.ports.errors import BadValueError, ConflictError, ModelLoadError

PARAMETER = "weights"
"""What errors name."""


@attrs.define(eq=False)
class _Blank:
    """A model that is being filled.

    Attributes:
        partial: whether what is not read is taken from where the running model's weights came from.
        read: the tensors that have arrived, by their names in a checkpoint.
        sources: the folders that they came from with their digests; None for what no folder has any more.
    """

    model: DecoderModel
    made: Any
    partial: bool
    read: set[str] = attrs.field(factory=set)
    sources: list[tuple[str | None, bytes]] = attrs.field(factory=list)
    is_complete: bool = False


class ModelWeights:
    """Fulfils `WeightStore` for a model that was loaded from a folder; `refusal` says why it cannot be updated, if it cannot."""

    def __init__(
        self, model: DecoderModel, folder: str, quantization: str | None, refusal: str | None = None
    ) -> None:
        self._model, self._quantization, self._refusal = model, quantization, refusal
        self._sources: list[tuple[str | None, bytes]] = [(folder, b"")]
        self._stamps = _stamps(folder)
        self._blank: _Blank | None = None

    def read(self, source: str | Iterable[tuple[str, Any]], /, *, anew: bool, partial: bool) -> None:
        """See `WeightStore`."""
        if self._refusal is not None:
            raise BadValueError(PARAMETER, self._refusal)
        blank = None if anew else self._blank
        self._blank = None
        try:
            if blank is None:
                blank = _Blank(*blank_like(self._model, self._quantization), partial)
                for folder, digest in self._sources if partial else ():
                    self._check_source(folder, digest)
                    self._read_folder(blank, str(folder))
            if isinstance(source, str):
                digest = weights_digest(source)
                self._read_folder(blank, source)
                blank.sources.append((source, digest))
            else:
                blank.sources.append((None, self._read_tensors(blank, source)))
            self._check_finite(blank)
        except (ModelLoadError, OSError) as error:
            raise BadValueError(PARAMETER, str(error)) from error
        self._blank = blank

    def complete(self) -> str:
        """See `WeightStore`."""
        blank, self._blank = self._blank, None
        if blank is None:
            raise ConflictError("no weights were read; start an update, and send them")
        missing = sorted(blank.model.checkpoint_tensors().keys() - blank.read)
        if missing:
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise BadValueError(
                PARAMETER, f"{len(missing)} tensors were not sent: {names}; send all, or update in part"
            )
        finish_like(blank.model, self._model, self._quantization)
        made = {path: tensor.shape for path, _, _, tensor in held_tensors(blank.model)}
        for path, _, _, tensor in held_tensors(self._model):
            if made.get(path) != tensor.shape:
                raise BadValueError(PARAMETER, f"{path} cannot be made anew beside a running engine")
        blank.is_complete, self._blank = True, blank
        before = self._sources if blank.partial else []
        return hashlib.sha256(b"".join(digest for _, digest in [*before, *blank.sources])).hexdigest()

    def write(self) -> None:
        """See `WeightStore`."""
        blank, self._blank = self._blank, None
        assert blank is not None
        assert blank.is_complete
        made = {path: tensor for path, _, _, tensor in held_tensors(blank.model)}
        with torch.inference_mode():
            for path, module, name, tensor in held_tensors(self._model):
                if tensor.is_mkldnn:  # which nothing can be copied into
                    setattr(module, name, made[path])
                else:
                    tensor.copy_(made[path])
        self._sources = [*(self._sources if blank.partial else ()), *blank.sources]

    def _check_source(self, folder: str | None, digest: bytes) -> None:
        """What a partial update leaves as it is must be where it came from, unchanged."""
        if folder is None:
            raise ModelLoadError("the weights that would stay came from no folder, and are gone: send all")
        if digest != weights_digest(folder) if digest else self._stamps != _stamps(folder):
            raise ModelLoadError(f"{folder}: has changed since it was read, so nothing can stay: send all")

    def _read_folder(self, blank: _Blank, folder: str) -> None:
        if is_gguf(Path(folder)):
            raise ModelLoadError(f"{folder}: a GGUF file; weights are updated from safetensors alone")
        if blank.model.spec.tied_embeddings and has_own_head(folder):
            raise ModelLoadError(
                f"{folder}: has an lm_head of its own, and the model that runs is tied: start anew"
            )
        lanes = [HostLane() for _ in range(min(MOST_LANES, os.cpu_count() or 1))]
        files = checkpoint_files(Path(folder))
        self._overlay(blank, [each for file in files for each in stored_tensors(file)], lanes)

    def _read_tensors(self, blank: _Blank, tensors: Iterable[tuple[str, Any]]) -> bytes:
        digest, origin = hashlib.sha256(), Path("the caller")
        for name, tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise ModelLoadError(f"{name!r} must be a tensor, got {type(tensor).__name__}")
            numbers = tensor.detach().cpu().contiguous()
            self._overlay(blank, [StoredTensor(origin, name, numbers, 0)], ())
            digest.update(f"{name} {numbers.dtype} {[*numbers.shape]}\n".encode())
            digest.update(numbers.view(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    def _overlay(self, blank: _Blank, tensors: list[StoredTensor], lanes: Any) -> None:
        model = blank.model
        with torch.inference_mode():
            blank.read |= overlay(
                tensors,
                model.checkpoint_tensors(),
                tied_head=model.spec.tied_embeddings,
                stacks=model.stacks(),
                unused=model.unused,
                scale_targets=scale_targets(model),
                lanes=lanes,
                made=blank.made,
            )

    def _check_finite(self, blank: _Blank) -> None:
        targets = scale_targets(blank.model)
        for name, tensor in blank.model.checkpoint_tensors().items():
            numbers = targets.get(name, tensor)
            if name in blank.read and not bool(numbers.isfinite().all()):
                raise ModelLoadError(f"tensor {name!r} has numbers that are not finite")


def held_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Every tensor that a model's modules hold: its path, the module, its name there; one that is shared comes again."""
    for path, module in model.named_modules():
        held = {**vars(module), **module._parameters, **module._buffers}  # noqa: SLF001 - torch lists parameters alone
        for name, tensor in held.items():
            if isinstance(tensor, Tensor):
                yield f"{path}.{name}", module, name, tensor


def _stamps(folder: str) -> list[tuple[str, int, int]]:
    files = [Path(folder)] if is_gguf(Path(folder)) else checkpoint_files(Path(folder))
    return [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
