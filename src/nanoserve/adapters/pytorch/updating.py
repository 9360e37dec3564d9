"""New weights for a running model, by the way on which its first ones came.

A blank model of the same shape is filled, arranged and packed like the first one, and checked; then each of its tensors is copied into the
one that the running model holds in its place. So every form that weights are kept in is made again, addresses stay, and nothing is written
before all is known to be right. It costs memory for the model once more while it lasts: of its GPU where there is so much, else of the host.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard, cast

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.shared_tensors import opened
from nanoserve.adapters.pytorch.cuda.virtual_memory import VirtualMemory, spare_memory
from nanoserve.adapters.pytorch.devices import CPU, empty_tensors, host_pages
from nanoserve.adapters.pytorch.models import DecoderModel, blank_like, destinations, finish_like
from nanoserve.adapters.pytorch.sleeping import HostMemory, held_tensors, tensors_of
from nanoserve.adapters.pytorch.weights import checkpoint, staging
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf
from nanoserve.adapters.pytorch.weights.identity import weights_digest
from nanoserve.adapters.pytorch.weights.keeping import forms_of, scale_targets
from nanoserve.adapters.pytorch.weights.kv_scales import kv_scales, read_kv_scales
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, is_finite
from nanoserve.ports.errors import BadValueError, ConflictError, ModelLoadError, OutOfMemoryError
from nanoserve.ports.steering import KV_CACHE, WEIGHTS, RankSource, SharedTensor, WeightSource

PARAMETER = "weights"
"""Named by errors."""
_LEVELS: Final = (1, 2)
DIGEST_BYTES: Final = 32


class OtherRanks(Protocol):
    """The other ranks' parts of a model; no step is in flight."""

    def read_weights(self, sources: Sequence[RankSource], *, partial: bool) -> None:
        """Have each rank read its part of these, and check it; raises `BadValueError` if one refuses."""

    def write_weights(self) -> None:
        """Have each rank compute with the weights that it has read."""

    def sleep(self, level: int) -> None:
        """Have all sleep, or raise `BadValueError` and none does."""

    def wake(self, part: str) -> None:
        """Have all wake this part; raises `BadValueError` if one cannot, and may be called again."""


@attrs.define(eq=False)
class _Blank:
    """A model that is being filled.

    Attributes:
        partial: whether what is not read is taken from where the running model's weights came from.
        read: the tensors that have arrived, by their names in a checkpoint.
        sources: the folders that they came from with their digests; None for what no folder has any more.
        origins: where other ranks find their parts of them.
        digest: of all, once it is complete.
    """

    model: DecoderModel
    made: Any
    partial: bool
    read: set[str] = attrs.field(factory=set)
    sources: list[tuple[str | None, bytes]] = attrs.field(factory=list)
    origins: list[RankSource] = attrs.field(factory=list)
    digest: str = ""


class ModelWeights:
    """Fulfils `WeightStore` for a model that was loaded from a folder, or for this rank's part of one; `others` are the parts of the others."""

    def __init__(
        self,
        model: DecoderModel,
        folder: str | None,
        quantization: str | None,
        *,
        memories: Mapping[str, HostMemory | VirtualMemory] | None = None,
        others: OtherRanks | None = None,
    ) -> None:
        self._model, self._quantization, self._others = model, quantization, others
        self._memories, self._asleep, self._reads = memories, set[str](), False
        self._filled: _Blank | None = None
        self._first = folder, b""
        self._sources: list[tuple[str | None, bytes]] = [self._first]
        self._stamps = [] if folder is None else _stamps(folder)
        self._is_stored = folder is not None and checkpoint.is_packed(folder)
        self._blank: _Blank | None = None
        self.is_lost = False
        # The model's own are away while it sleeps, and no update has others.
        self._kv_scales = {layer: torch.ones(each.shape) for layer, each in kv_scales(model).items()}
        if self._kv_scales and folder is not None:
            read_kv_scales(self._kv_scales, folder, rank=model.ranks.rank, ranks=model.ranks.size)

    def read(self, source: WeightSource, /, *, anew: bool, partial: bool) -> None:
        if self._others is not None and not _is_rank_source(source):
            where = "from folders, or from another process's GPU memory"
            raise BadValueError(PARAMETER, f"of a model over several processes come {where}")
        blank = None if anew else self._blank
        if blank is not None and blank.digest:
            raise ConflictError("the update is complete: finish it, or start another one")
        self._blank = None
        try:
            with _beside_steps(self._device):
                blank = self._new_blank(partial=partial) if blank is None else blank
                if isinstance(source, str):
                    digest = weights_digest(source)
                    self._read_folder(blank, source)
                    blank.sources.append((source, digest))
                else:
                    self._read_tensors(blank, source)
                    # Nobody can read them again.
                    blank.sources.append((None, secrets.token_bytes(DIGEST_BYTES)))
        except (ModelLoadError, OSError) as error:
            raise BadValueError(PARAMETER, str(error)) from error
        if _is_rank_source(source):
            blank.origins.append(source)
        self._blank = blank

    def complete(self) -> str:
        blank, self._blank = self._blank, None
        if blank is None:
            raise ConflictError("no weights were read; start an update, and send them")
        if blank.digest:  # it could not be written then
            self._blank = blank
            return blank.digest
        with contextlib.suppress(ModelLoadError, OSError), _beside_steps(self._device):
            self._keep_further(blank)
        missing = sorted(blank.model.checkpoint_tensors().keys() - blank.read)
        if missing:
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise BadValueError(
                PARAMETER, f"{len(missing)} tensors were not sent: {names}; send all, or update in part"
            )
        with _beside_steps(self._device):
            finish_like(blank.model, self._model, self._quantization)
        made = {path: tensor for path, _, _, tensor in held_tensors(blank.model)}
        for path, _, _, tensor in held_tensors(self._model):
            anew = made.get(path)
            if anew is None or (anew.shape != tensor.shape and not anew.is_mkldnn):
                raise BadValueError(PARAMETER, f"{path} cannot be loaded beside a running engine")
        if forms_of(blank.model) != forms_of(self._model):
            message = "scales have another layout than the running model's"
            raise BadValueError(PARAMETER, f"{message}: restart the server with this checkpoint")
        before = self._sources if blank.partial else []
        blank.digest = hashlib.sha256(b"".join(digest for _, digest in [*before, *blank.sources])).hexdigest()
        self._blank = blank
        return blank.digest

    def _keep_further(self, blank: _Blank) -> None:
        """Read the layer that drafts from the first folder if all but that was sent: trainers seldom have it, and drafts change no answer."""
        names, further = blank.model.checkpoint_tensors().keys(), blank.model.further
        own = {each for each in names if further and each.startswith(further.prefixes)}
        if not own or names - blank.read != own:
            return
        self._check_source(*self._first)
        found = checkpoint.tensors_in(str(self._first[0]))
        self._overlay(blank, [each for each in found if each.name.startswith(further.prefixes)])
        blank.sources.insert(0, self._first)

    def write(self) -> None:
        blank, self._blank = self._blank, None
        assert blank is not None
        assert blank.digest
        if self._others is not None:
            self._others.read_weights(blank.origins, partial=blank.partial)
            self._others.write_weights()
        self._write_own(blank)

    def _write_own(self, blank: _Blank) -> None:
        made = {path: tensor for path, _, _, tensor in held_tensors(blank.model)}
        large: list[staging.Piece] = []
        with torch.inference_mode():
            for path, module, name, tensor in held_tensors(self._model):
                source = made[path]
                if source.is_mkldnn:  # which nothing can be copied into
                    setattr(module, name, source)
                elif (
                    tensor.device == source.device
                    or source.nbytes < staging.PIECE_BYTES
                    or source.is_pinned()
                ):
                    tensor.copy_(source)
                else:
                    large += staging.pieces_of(_in_memory(path, source.contiguous()), tensor)
        if large:
            staging.transfer(large, staging.lanes_between(CPU, large[0].destination.device))
        if self._memories is not None:
            self._memories[WEIGHTS].forget()
        self._sources = [*(self._sources if blank.partial else ()), *blank.sources]
        self.is_lost = False

    def sleep(self, level: int, /) -> None:
        if self._memories is None:
            raise BadValueError("sleep", "is for engines on CPUs, and GPUs whose driver has virtual memory")
        if level not in _LEVELS:
            raise BadValueError("level", f"must be 1 or 2, got {level}")
        keep, has_weights = level == _LEVELS[0], WEIGHTS not in self._asleep
        has_folders = all(folder is not None for folder, _ in self._sources)
        if not keep and has_weights:
            try:
                for source in self._sources if has_folders else ():
                    self._check_source(*source)
            except (ModelLoadError, OSError) as error:
                raise BadValueError("level", f"the weights could not be read again: {error}") from error
        self._blank = None
        if self._others is not None:
            self._others.sleep(level)
        if has_weights:
            is_kept = self._release_weights(keep=keep)
            self._reads = not is_kept and has_folders
            self.is_lost |= not is_kept and not has_folders
        if KV_CACHE not in self._asleep:
            self._memories[KV_CACHE].release(keep=False)
        self._asleep = {WEIGHTS, KV_CACHE}

    def _release_weights(self, *, keep: bool) -> bool:
        """Free their memory; returns whether `restore` brings them."""
        assert self._memories is not None
        memory = self._memories[WEIGHTS]
        if isinstance(memory, VirtualMemory) and memory.is_bare:
            self._filled, keep = self._fill(), False
            memory.pin(tensors_of(self._filled.model))
        elif not keep:
            for _, module, name, tensor in list(held_tensors(self._model)):
                if tensor.is_mkldnn:
                    setattr(module, name, torch.empty(0))
        memory.release(keep=keep)
        return keep

    def wake(self, part: str, /) -> None:
        if self._memories is None or part not in self._asleep:
            return
        reads = part == WEIGHTS and self._reads
        try:
            if self._others is not None:
                self._others.wake(part)
            filled = (self._filled or self._fill()) if reads else None
            memory = self._memories[part]
            memory.restore()
        except (ModelLoadError, OSError, OutOfMemoryError) as error:
            raise BadValueError(part, f"{error}; the engine stays asleep") from error
        if filled is not None:
            self._write_own(filled)
        if filled is not None and filled is self._filled and isinstance(memory, VirtualMemory):
            memory.unpin(tensors_of(filled.model))
            self._filled = None
        self._asleep.discard(part)

    def _fill(self) -> _Blank:
        """A blank with all that the running model was read from, ready to be written."""
        self._blank = self._new_blank(partial=True, on_host=True)
        self.complete()
        assert self._blank is not None
        filled, self._blank = self._blank, None
        return filled

    def _new_blank(self, *, partial: bool, on_host: bool = False) -> _Blank:
        """A blank; if `partial`, it holds the weights that the running model was read from."""
        blank = _Blank(*self._empty(on_host=on_host), partial)
        for layer, scales in kv_scales(blank.model).items():
            scales.copy_(self._kv_scales[layer])
        for folder, digest in self._sources if partial else ():
            self._check_source(folder, digest)
            self._read_folder(blank, str(folder))
        return blank

    def _empty(self, *, on_host: bool) -> tuple[DecoderModel, Any]:
        size = sum(each.nbytes for each in self._model.parameters())
        spare = None if on_host or WEIGHTS in self._asleep else spare_memory(self._device, size)
        if spare is not None:
            with contextlib.suppress(OutOfMemoryError):  # another process has taken it
                return blank_like(self._model, self._quantization, spare.take)
        host = host_pages if self._device.type == "cuda" else functools.partial(empty_tensors, device=CPU)
        return blank_like(self._model, self._quantization, host)

    @property
    def _device(self) -> torch.device:
        return self._model.embedding.weight.device

    def _check_source(self, folder: str | None, digest: bytes) -> None:
        """Check that the sources of weights that a partial update keeps are unchanged."""
        if folder is None:
            raise ModelLoadError("the weights to keep did not come from a folder, and are gone: send all")
        if digest != weights_digest(folder) if digest else self._stamps != _stamps(folder):
            raise ModelLoadError(f"{folder}: has changed since it was read, so nothing can stay: send all")

    def _read_folder(self, blank: _Blank, folder: str) -> None:
        is_file = is_gguf(Path(folder))
        if is_file and folder != self._sources[0][0]:
            raise ModelLoadError(f"{folder}: a GGUF file; weights are updated only from safetensors")
        if is_file or (self._is_stored and checkpoint.is_packed(folder)):
            self._read_stored(blank, folder)
            return
        if blank.model.spec.tied_embeddings and checkpoint.has_own_head(folder):
            raise ModelLoadError(
                f"{folder}: has its own lm_head, and the running model's is tied: restart the server with it"
            )
        self._overlay(blank, list(checkpoint.tensors_in(folder)))

    def _read_stored(self, blank: _Blank, folder: str) -> None:
        """All of a checkpoint that is quantized, for its matrices and their scales come in several tensors."""
        if blank.read:
            message = "is stored quantized: send all of it, as one folder, in one request"
            raise ModelLoadError(f"{folder}: {message}")
        with torch.inference_mode():
            lanes = staging.lanes_between(CPU, blank.model.embedding.weight.device)
            checkpoint.load_checkpoint(
                folder, destinations(blank.model), packing=blank.model.spec.packing, lanes=lanes
            )
        self._note(blank, blank.model.checkpoint_tensors().keys())

    def _read_tensors(
        self, blank: _Blank, tensors: tuple[SharedTensor, ...] | Iterable[tuple[str, Any]]
    ) -> None:
        if _is_shared(tensors):
            with opened(tensors) as pairs:
                self._overlay(blank, [_in_memory(*each) for each in pairs])
            return
        for name, tensor in cast("Iterable[tuple[str, Any]]", tensors):
            if not isinstance(tensor, Tensor):
                raise ModelLoadError(f"{name!r} must be a tensor, got {type(tensor).__name__}")
            self._overlay(blank, [_in_memory(name, tensor.detach().contiguous())])

    def _overlay(self, blank: _Blank, tensors: list[StoredTensor]) -> None:
        """Fill the blank with tensors of files, or of one device, and check them; raises `ModelLoadError`."""
        if not tensors:
            return
        model, device = blank.model, tensors[0].data.device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # lanes have streams of their own
        into = destinations(model, blank.made)
        if into.scale_targets.keys() - into.made.keys():
            message = "this model keeps its weights as its checkpoint stores them"
            raise ModelLoadError(f"{message}: send a folder of the same form, or start from plain floats")
        with torch.inference_mode():
            lanes = staging.lanes_between(device, model.embedding.weight.device)
            read = checkpoint.overlay(tensors, into, lanes)
        self._note(blank, read)

    def _note(self, blank: _Blank, read: Iterable[str]) -> None:
        """These tensors are there; raises `ModelLoadError` if one of their numbers is not finite."""
        destinations, targets = blank.model.checkpoint_tensors(), scale_targets(blank.model)
        for name in read:
            if not is_finite(targets.get(name, destinations[name])):
                raise ModelLoadError(f"tensor {name!r} has numbers that are not finite")
        blank.read |= {*read}


@contextlib.contextmanager
def _beside_steps(device: torch.device) -> Iterator[None]:
    """Queue on a stream of its own, so that steps go on meanwhile; all of it is done at the end."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()


def _is_shared(source: WeightSource) -> TypeGuard[tuple[SharedTensor, ...]]:
    return isinstance(source, tuple) and all(isinstance(each, SharedTensor) for each in source)


def _is_rank_source(source: WeightSource) -> TypeGuard[RankSource]:
    return isinstance(source, str) or _is_shared(source)


def _in_memory(name: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(Path("the caller"), name, tensor, 0, in_memory=True)


def _stamps(folder: str) -> list[tuple[str, int, int]]:
    files = [Path(folder)] if is_gguf(Path(folder)) else checkpoint.checkpoint_files(Path(folder))
    return [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
