"""Model pages by architecture, and how a model is built: shaped on no device, filled, then packed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import torch
from torch import nn

from nanoserve.adapters.pytorch.devices import Take, default_dtype, empty_tensors
from nanoserve.adapters.pytorch.linear import PackedLinear, pack_linears
from nanoserve.adapters.pytorch.mixers import kind_of
from nanoserve.adapters.pytorch.models.decoder import DecoderModel, Observer
from nanoserve.adapters.pytorch.models.deepseek import DeepSeek, Glm4Moe
from nanoserve.adapters.pytorch.models.eagle import check_finite, load_head
from nanoserve.adapters.pytorch.models.encoder import Encoder, ModernBert
from nanoserve.adapters.pytorch.models.gemma import Gemma, GemmaBesideVision
from nanoserve.adapters.pytorch.models.gpt_oss import GptOss
from nanoserve.adapters.pytorch.models.granite import GraniteMoe
from nanoserve.adapters.pytorch.models.llama import Llama
from nanoserve.adapters.pytorch.models.mtp import MtpHead
from nanoserve.adapters.pytorch.models.olmo2 import Olmo2
from nanoserve.adapters.pytorch.models.phi3 import Phi3
from nanoserve.adapters.pytorch.models.qwen3_moe import Qwen3Moe
from nanoserve.adapters.pytorch.models.qwen3_next import Qwen3Next
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.parallel.splitting import EXPERTS, SETTING, Slices
from nanoserve.adapters.pytorch.weights import keeping
from nanoserve.adapters.pytorch.weights.checkpoint import HEAD, Destinations, has_own_head, load_checkpoint
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf
from nanoserve.adapters.pytorch.weights.kv_scales import fill_kv_scales
from nanoserve.adapters.pytorch.weights.noise import SCALE, fill_randomly
from nanoserve.kernels.forms import FORMS, PLAIN, Form
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.layer_spec import DenseSpec, ExpertsSpec, Feed, LayerSpec, Mixer
from nanoserve.ports.model_spec import DraftSpec, ModelSpec

PAGES: Final[Mapping[str, type[DecoderModel]]] = {
    "bert": Encoder,
    "deepseek_v2": DeepSeek,
    "deepseek_v3": DeepSeek,
    "kimi_k2": DeepSeek,
    "gemma2": Gemma,
    "gemma3": GemmaBesideVision,
    "gemma3_text": Gemma,
    "glm4_moe": Glm4Moe,
    "gpt_oss": GptOss,
    "granite": Llama,  # with scales of the spec (Granite Team, IBM 2024)
    "granitemoe": GraniteMoe,
    "llama": Llama,
    "minimax_m2": Qwen3Moe,  # with norms of whole q and k, and corrected sigmoids (MiniMax 2025)
    "mistral": Llama,  # with a window (Jiang et al. 2023)
    "mixtral": Qwen3Moe,  # with other names: `ExpertsSpec.names` (Jiang et al. 2024)
    "olmoe": Qwen3Moe,  # with norms of whole q and k, and bounds of q, k and v (Muennighoff et al. 2024)
    "modernbert": ModernBert,
    "olmo2": Olmo2,
    "phi3": Phi3,
    "qwen2": Llama,  # with biases of q, k and v (Yang et al. 2024)
    "qwen3": Llama,  # with norms of each head of q and k (Yang et al. 2025)
    "qwen3_moe": Qwen3Moe,
    "qwen3_next": Qwen3Next,
    "roberta": Encoder,
    "xlm-roberta": Encoder,
}
"""The page of each `ModelSpec.architecture`. A family that differs from another one only in its `ModelSpec` shares its page."""

MADE = ("fp8", "int4")
"""The forms that a GPU's weights are put into as they arrive."""


def build_model(
    spec: ModelSpec,
    folder: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    quantize_head: str | None = None,
    keep: bool | None = None,
    ranks: Communicator = ALONE,
    take: Take | None = None,
    read: bool = True,
    draft: str | None = None,
    drafts: bool = False,
    **how: bool,
) -> DecoderModel:
    """Build a model with the weights of a folder of safetensors files; with other `ranks`, this rank's part of it, `how` as in `split_spec`. `draft` is the folder of what drafts for it; one that itself `drafts` must have finite numbers.

    Weights are converted to `dtype`, and to `quantization` where asked: "int8" or "int4" on a CPU, and on a GPU "fp8" or "int4", made of each tensor as
    it arrives; and the head to `quantize_head`, whatever they are: "int8" or "fp8". Those that kernels compute with as they are stored are kept so with `keep`, or where this is None on a GPU. `take` makes the
    tensors that hold them, on this device. Without `read` all is checked, and the tensors hold what was in memory. A spec with a tied head is
    taken as one with a head of its own where the checkpoint has another one, as in transformers.

    Raises:
        ModelLoadError: an unknown architecture, or weights that are missing, left over, mis-shaped or corrupt.
        BadValueError: an unknown quantization, or one that cannot be made of these experts; a model that cannot be split so.
    """
    _page(spec)  # known before a file is opened
    if draft is not None and isinstance(spec.draft, ModelSpec):
        small = build_model(spec.draft, draft, dtype=dtype, device=device, drafts=True)
    keeps = device.type == "cuda" if keep is None else keep
    made = _made_form(spec, quantization, keeps=keeps)
    if made is not None and is_gguf(Path(folder)):
        raise BadValueError("quantization", f"{quantization} cannot be made of a GGUF file; leave it out")
    if spec.tied_embeddings and has_own_head(folder):
        spec = attrs.evolve(spec, tied_embeddings=False)
    model = _shaped(spec, dtype, ranks, **how)
    if model.further is not None:
        model.further.check_stored(folder)
    stored = keeps and (spec.stored is not None or is_gguf(Path(folder)))
    forms = keeping.stored_forms(folder, model, spec.packing) if stored and made is None else {}
    _keep(model, forms, made, quantize_head)
    _load(spec, folder, model, made, read=False)
    _settle(model, take or functools.partial(empty_tensors, device=device))
    if read:
        fill_kv_scales(model, folder, rank=ranks.rank, ranks=ranks.size)
        _load(spec, folder, model, made, read=True)
        if drafts:
            check_finite(model.checkpoint_tensors(), folder)
    _finish(model, quantization, packs=not keeps)
    if draft is not None:
        model.draft_head = small if isinstance(spec.draft, ModelSpec) else load_head(draft, model)
    return model


def blank_like(model: DecoderModel, quantization: str | None, take: Take) -> tuple[DecoderModel, Form | None]:
    """A model of the same shape, empty, in memory that `take` finds, and the form that its plain tensors are put into; with other ranks, the same part."""
    on_gpu = model.embedding.weight.device.type == "cuda"
    made = FORMS[quantization] if quantization == "fp8" or (quantization == "int4" and on_gpu) else None
    blank = _empty(model.spec, model.embedding.weight.dtype, model.ranks)
    blank.slices = model.slices
    keeping.keep_like(blank, model)
    _settle(blank, take)
    return blank, made


def finish_like(blank: DecoderModel, model: DecoderModel, quantization: str | None) -> None:
    """Bring a blank that is filled into the form in which the model computes."""
    packs = any(isinstance(each, PackedLinear) for each in model.modules())
    _finish(blank, quantization, packs=packs)
    blank.is_invariant = model.is_invariant


def _finish(model: DecoderModel, quantization: str | None, *, packs: bool) -> None:
    with torch.inference_mode():
        model.arrange()
        keeping.note_blocks(model)
    if packs:
        pack_linears(model, quantization)


def _load(spec: ModelSpec, folder: str, model: DecoderModel, made: Form | None, *, read: bool) -> None:
    load_checkpoint(folder, destinations(model, made), packing=spec.packing, read=read)
    for within in dict.fromkeys(each.folder for each in spec.pooled_layers if each.folder):
        load_checkpoint(f"{folder}/{within}", Destinations(model.pooled_tensors(within)), read=read)


def destinations(model: DecoderModel, made: Form | None = None) -> Destinations:
    """The tensors of a model, or of a rank's part of one, that a checkpoint fills; plain ones are put into the form `made`, the head into its own."""
    forms = keeping.kept_forms(model)
    return Destinations(
        model.checkpoint_tensors(),
        tied_head=model.spec.tied_embeddings,
        stacks=model.stacks(),
        unused=model.unused,
        scale_targets=keeping.scale_targets(model),
        slices=model.slices,
        made={name: form for name, form in forms.items() if made is not None or name.endswith(HEAD)},
    )


def build_random_model(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    quantization: str | None = None,
    quantize_head: str | None = None,
    keep: bool | None = None,
    ranks: Communicator = ALONE,
    take: Take | None = None,
    **how: bool,
) -> DecoderModel:
    """Build a model of a shape with random weights, which take no file and compute as fast as real ones; see `build_model`."""
    keeps = device.type == "cuda" if keep is None else keep
    made = _made_form(spec, quantization, keeps=keeps)
    model = _shaped(spec, dtype, ranks, **how)
    forms = keeping.all_forms(model, spec.stored) if keeps and spec.stored is not None else {}
    _keep(model, forms, made, quantize_head)
    _settle(model, take or functools.partial(empty_tensors, device=device))
    fill_kv_scales(model)
    fill_randomly(model.checkpoint_tensors(), seed=seed)
    for form, _, scales in keeping.kept(model):
        scales.fill_(form.even_scale(SCALE))
    with torch.inference_mode():
        model.fill_plainly()
    _finish(model, quantization, packs=not keeps)
    return model


def split_spec(
    spec: ModelSpec, size: int, *, rank: int = 0, expert_parallel: bool = False, deals_latents: bool = False
) -> ModelSpec:
    """The model as one of `size` ranks computes it: heads and feeds are divided, the vocabulary remains whole.

    With `expert_parallel` each rank has some of the experts whole, and without it a part of each. With `deals_latents` it keeps every `size`th token's latent,
    and without it all. Raises `BadValueError` for a model that cannot be split into this many parts.
    """
    if expert_parallel and size == 1:
        raise BadValueError(EXPERTS, "divides experts over ranks; ask for tensor_parallel_size 2 or more")
    if expert_parallel and not any(isinstance(layer.feed, ExpertsSpec) for layer in spec.layers):
        raise BadValueError(EXPERTS, f"{spec.architecture} has no experts here; leave it out")
    if size == 1:
        return spec
    holder = rank if expert_parallel else None
    layers = tuple(
        LayerSpec(
            _split_mixer(layer.mixer, spec, size, deals_latents=deals_latents),
            _split_feed(layer.feed, spec, size, holder),
        )
        for layer in spec.layers
    )
    return attrs.evolve(spec, layers=layers)


def _split_mixer(mixer: Mixer, spec: ModelSpec, size: int, *, deals_latents: bool) -> Mixer:
    holders = size if deals_latents else 1
    own = kind_of(mixer).split(functools.partial(_divided, spec=spec, size=size), holders)
    if isinstance(own, str):
        raise BadValueError(SETTING, f"{own} ({spec.architecture}) cannot be split over ranks yet; ask for 1")
    return own


def _split_feed(feed: Feed, spec: ModelSpec, size: int, holder: int | None) -> Feed:
    """`holder` is the rank whose whole experts are wanted; None for a part of each."""
    if isinstance(feed, DenseSpec):
        return attrs.evolve(feed, size=_divided(feed.size, "elements of the feeds", spec, size))
    shared = _divided(feed.shared_size, "elements of shared experts", spec, size)
    if holder is None:
        own = _divided(feed.size, "elements of the feeds", spec, size)
        return attrs.evolve(feed, size=own, shared_size=shared)
    each = _divided(feed.count, "experts", spec, size)
    return attrs.evolve(feed, held=range(holder * each, (holder + 1) * each), shared_size=shared)


def _divided(count: int, what: str, spec: ModelSpec, size: int) -> int:
    if count % size:
        raise BadValueError(SETTING, f"must divide the {count} {what} of {spec.architecture}, got {size}")
    return count // size


def _made_form(spec: ModelSpec, quantization: str | None, *, keeps: bool) -> Form | None:
    """The form that plain weights are put into as they arrive; raises `BadValueError` for a quantization that cannot be."""
    if quantization not in MADE or (quantization == "int4" and not keeps):
        if quantization is not None and any(isinstance(layer.feed, ExpertsSpec) for layer in spec.layers):
            message = f"{quantization} has no kernels for a mixture of experts on a CPU; leave it out"
            raise BadValueError("quantization", message)
        return None
    if not keeps:
        raise BadValueError("quantization", "fp8 is for a GPU; leave it out, or take int8 or int4 on a CPU")
    if spec.stored is not None:
        message = f"{quantization} cannot be made of a checkpoint that is stored quantized ({spec.stored}); leave it out"
        raise BadValueError("quantization", message)
    return FORMS[quantization]


def _fitting(model: DecoderModel, made: Form) -> dict[str, Form]:
    """The form for each tensor whose rows are of whole words."""
    tensors = model.checkpoint_tensors().items()
    return {name: made for name, each in tensors if each.dim() == 2 and each.shape[1] % made.multiple == 0}


def _keep(model: DecoderModel, forms: Mapping[str, Form], made: Form | None, head: str | None) -> None:
    """Give parameters the forms of a checkpoint's tensors, or the one that they are put into, and the head its own.

    Raises `BadValueError` if experts stay plain where a form was asked for: their rows, or their cuts, do not fit it, or a checkpoint has them in another order.
    """
    forms = forms if made is None else _fitting(model, made)
    if model.slices is not None:
        forms = model.slices.fitting(forms, model.checkpoint_tensors())
    keeping.keep_as_stored(model, forms)
    if head is not None:
        keeping.narrow_head(model, FORMS[head])
    if made is not None and any(PLAIN in each.forms for each in model.mixtures()):
        message = f"{made.name} cannot be made of the experts of {model.spec.architecture} here; leave it out"
        raise BadValueError("quantization", message)


def _slices(spec: ModelSpec, model: DecoderModel, ranks: Communicator) -> Slices | None:
    """Where a rank's part lies in the checkpoint of the whole model."""
    if ranks.size == 1:
        return None
    with torch.device("meta"):
        whole = PAGES[spec.architecture](spec)
    wholes, own = whole.checkpoint_tensors(), model.checkpoint_tensors().keys()
    return Slices(
        ranks.rank,
        ranks.size,
        {name: tensor for name, tensor in wholes.items() if name in own},
        whole.stacks(),
        model.sections(),
        wholes.keys() - own,
    )


def _shaped(spec: ModelSpec, dtype: torch.dtype, ranks: Communicator, **how: bool) -> DecoderModel:
    """A model, or a rank's part of one, without memory."""
    model = _empty(split_spec(spec, ranks.size, rank=ranks.rank, **how), dtype, ranks)
    model.slices = _slices(spec, model, ranks)
    return model


def _empty(spec: ModelSpec, dtype: torch.dtype, ranks: Communicator) -> DecoderModel:
    with torch.device("meta"), default_dtype(dtype):
        model = _page(spec)(spec, ranks)
        if isinstance(spec.draft, DraftSpec) and spec.draft.own:
            model.further = model.draft_head = MtpHead(model)
        return model.eval()


def _page(spec: ModelSpec) -> type[DecoderModel]:
    if spec.architecture not in PAGES:
        known = ", ".join(sorted(PAGES))
        raise ModelLoadError(f"unknown model architecture {spec.architecture!r}: known are {known}")
    return PAGES[spec.architecture]


def _settle(model: DecoderModel, take: Take) -> None:
    """Give it memory on a device."""
    allocate(model, take)
    model.move_rotary(model.embedding.weight.device)


def allocate(model: nn.Module, take: Take) -> None:
    """Replace every parameter by an empty one; a parameter that is shared stays shared."""
    before = {id(each): each for each in model.parameters()}
    made = take([(each.shape, each.dtype) for each in before.values()])
    allocated = dict(zip(before, made, strict=True))
    parameters = {key: nn.Parameter(each, requires_grad=False) for key, each in allocated.items()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, parameters[id(parameter)])


__all__ = ["DecoderModel", "Observer"]
