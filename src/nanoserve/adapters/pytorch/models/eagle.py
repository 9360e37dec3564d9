"""The head of EAGLE-3 (Li et al. 2025): one layer that reads hidden states of a model, and guesses the next tokens.

At position i it reads hidden states of token i, joined, and the embedding of token i + 1; its output predicts token i + 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.devices import default_dtype
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.checkpoint import Stored, prefixed
from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.norm import Norms, make_norm
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel, Embedding, TorchLinearOps
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.adapters.pytorch.weights.checkpoint import tensors_in
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec
from nanoserve.ports.model_spec import DraftSpec

OFFSETS, CHOSEN, EMBEDDING = "d2t", "t2d", "embed_tokens.weight"
"""Names of a head's tensors: what is added to its ids for the model's, which of the model's it has, and its own embedding."""
_IGNORED: Final = (CHOSEN, "rotary_emb.inv_freq")


class EagleHead(nn.Module):
    """The head: hidden states of the model are joined, mixed with those of earlier positions, and compared with the tokens that it can guess.

    Attributes:
        entering: elements of a position that its layer reads: the token's vector, and the hidden state.
        embedding: of tokens; the model's, where the checkpoint has none.
        token_ids: int64 [draft vocabulary], the model's id of each token.
    """

    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        spec, draft = model.spec, model.spec.draft
        assert isinstance(draft, DraftSpec)
        assert isinstance(draft.layer.mixer, AttentionSpec)
        self.spec, self.layer = draft, spec.num_layers
        own = attrs.evolve(
            spec, hidden_size=draft.hidden_size, norm=draft.norm, layers=spec.keeping_layers, draft=None
        )
        self.entering = 2 * draft.hidden_size
        self.embedding = model.embedding
        self.join = Linear(len(draft.taps) * spec.hidden_size, draft.hidden_size)
        self.input_norm, self.hidden_norm, self.norm = (
            make_norm(draft.hidden_size, draft.norm) for _ in range(3)
        )
        self.attention = Attention(own, self.layer, Norms(None))
        width, bias = self.attention.qkv.out_features, draft.layer.mixer.qkv_bias
        self.attention.qkv = Linear(self.entering, width, bias=bias)
        self.feed = SwiGLU(own, self.layer)
        self.head = Linear(draft.hidden_size, draft.vocab_size)
        self.token_ids = torch.arange(draft.vocab_size)

    def forward(
        self, token_ids: Tensor, hidden: Tensor, inputs: StepInputs, kv: KVStore, model: DecoderModel
    ) -> Tensor:
        """Token ids [T], each behind its position, and joined states [T, hidden] to the head's states [T, hidden]."""
        step, normed = model.prepare(inputs, kv), self.hidden_norm(hidden)
        entering = torch.cat((self.input_norm(self.embedding(token_ids)), normed), dim=1)
        attended = step.mix(self.attention, self.attention.qkv(entering))
        ops = TorchLinearOps(normed if self.spec.adds_normed else hidden)
        ops.project_out(attended, self.attention.output)
        self.feed.run(ops, step)
        return ops.stream

    def begin(self, tapped: Tensor) -> Tensor:
        """The model's states that the head taps, [T, taps * hidden], to its hidden states [T, hidden]."""
        joined: Tensor = self.join(tapped)
        return joined

    def guess(self, hidden: Tensor) -> Tensor:
        """The head's states [S, hidden] to the likeliest tokens behind them, [S]."""
        return self.token_ids[self.head(self.norm(hidden)).argmax(-1)]

    def products(self) -> tuple[Product, ...]:
        """Every product of the head, in order; those of its layer read no stream."""
        inner = [attrs.evolve(each, name=f"{each.name}, drafts") for each in self.feed.products()]
        return (
            Product("joined taps", self.join, added=False),
            Product("qkv, drafts", self.attention.qkv, added=False),
            Product("output, drafts", self.attention.output),
            *inner,
            Product("head, drafts", self.head, self.norm),
        )

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As published heads name them."""
        layer: dict[str, Tensor] = {
            "input_layernorm.weight": self.input_norm.weight,
            "hidden_norm.weight": self.hidden_norm.weight,
        }
        layer |= self.attention.checkpoint_tensors() | self.feed.checkpoint_tensors()
        others = {
            "fc.weight": self.join.weight,
            "norm.weight": self.norm.weight,
            "lm_head.weight": self.head.weight,
        }
        return prefixed("midlayer", layer) | others


def load_head(folder: str, model: DecoderModel) -> EagleHead:
    """The head in a folder for a model whose spec has it. All is checked before any is read. Raises `ModelLoadError`."""
    weight = model.embedding.weight
    with weight.device, default_dtype(weight.dtype):
        head = EagleHead(model)
    stored = {_plain(each.name): each for each in tensors_in(folder, _IGNORED)}
    wanted = head.checkpoint_tensors()
    size, vocab_size = head.spec.vocab_size, model.spec.vocab_size
    maps = {OFFSETS: (size,)} if OFFSETS in stored or size < vocab_size else {}
    own = {EMBEDDING: (vocab_size, head.spec.hidden_size)}
    shapes = {**{name: tuple(each.shape) for name, each in wanted.items()}, **maps}
    if EMBEDDING in stored or head.spec.hidden_size != model.spec.hidden_size:
        shapes |= own
    _check(folder, stored, shapes)
    with torch.inference_mode():
        for name, tensor in wanted.items():
            tensor.copy_(stored[name].data)
        check_finite(wanted, folder)
        if EMBEDDING in shapes:
            head.embedding = Embedding(vocab_size, head.spec.hidden_size, None).to(weight)
            head.embedding.weight.copy_(stored[EMBEDDING].data)
        if maps:
            head.token_ids = head.token_ids + stored[OFFSETS].data.to(head.token_ids)
        for module in head.modules():
            if isinstance(module, Stored) and module is not model.embedding:
                module.arrange()
    if not 0 <= int(head.token_ids.min()) <= int(head.token_ids.max()) < vocab_size:
        raise ModelLoadError(f"{folder}: {OFFSETS} leads to tokens that the model does not have")
    return head


def check_finite(tensors: Mapping[str, Tensor], folder: str) -> None:
    """Raise `ModelLoadError` if a number of what drafts is not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ModelLoadError(
                f"{folder}: tensor {name!r} has numbers that are not finite, so it cannot draft"
            )


def _check(folder: str, stored: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(stored.keys() ^ shapes.keys()):
        what = "is missing" if name in shapes else "has no place in this head"
        raise ModelLoadError(f"{folder}: tensor {name!r} {what}: is its config right?")
    for name, shape in shapes.items():
        found = stored[name]
        if tuple(found.shape) != shape:
            raise ModelLoadError(
                f"{found.file}: tensor {name!r} must be {list(shape)}, got {list(found.shape)}"
            )
        if found.dtype.is_floating_point == (name == OFFSETS):
            raise ModelLoadError(f"{found.file}: tensor {name!r} cannot be {found.dtype}")


def _plain(name: str) -> str:
    """A tensor's name as plain checkpoints have it."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name
