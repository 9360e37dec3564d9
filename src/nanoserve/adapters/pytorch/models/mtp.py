"""Multi-token prediction (MTP, DeepSeek-AI 2024): a layer behind the model's own, of the same checkpoint, that guesses the next tokens.

As a head of EAGLE-3 (`models/eagle.py`) it reads, at position i, the hidden state of token i and the embedding of token i + 1. The state is the one
that the model compares with its vocabulary, so it has passed the last norm. The layer's own states, which take its place further ahead, have passed one, too.
Vectors of tokens and the head are the model's. Reference: `MtpModel` of transformers. The first of several such layers makes all drafts.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.experts import make_feed
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part, Step
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel, TorchLinearOps
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.adapters.pytorch.weights.checkpoint import tensors_in
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import LatentSpec
from nanoserve.ports.model_spec import DraftSpec


def _names(layer: str) -> tuple[str, ...]:
    """DeepSeek's: the layer, and in it the norms of vector and state, what joins them, and the norm behind the layer."""
    return (layer, *(f"{layer}.{each}" for each in ("enorm", "hnorm", "eh_proj", "shared_head.norm")))


class MtpHead(nn.Module):
    """The layer: vector and state are normed, joined, and pass through a layer as the model's own are.

    Attributes:
        spec, entering, embedding: as of an `EagleHead`.
        name: of the layer in a checkpoint; DeepSeek's counts it as one more of the model's.
        prefixes: what the names of all its tensors there begin with.
        parts: of the layer.
    """

    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        spec, draft = model.spec, model.spec.draft
        assert isinstance(draft, DraftSpec)
        assert isinstance(model.norm, RMSNorm)
        self.spec, size = draft, spec.hidden_size
        self._model = (model,)  # in a tuple, it is no module of this one
        self._names = model.further_names or _names(f"model.layers.{spec.num_layers}")
        self.name, self.prefixes = self._names[0], tuple(f"{each}." for each in self._names)
        self.entering, self.embedding, self.model_norm = 2 * size, model.embedding, model.norm
        self.input_norm, self.hidden_norm, self.norm = (RMSNorm(size, spec.norm) for _ in range(3))
        self.join = Linear(self.entering, size)
        own = attrs.evolve(spec, layers=spec.keeping_layers, draft=None)
        attention = LatentAttention if isinstance(draft.layer.mixer, LatentSpec) else Attention
        parts: list[Part] = [attention(own, spec.num_layers), make_feed(own, spec.num_layers)]
        self.parts, self._registered = tuple(parts), nn.ModuleList(parts)

    @property
    def token_ids(self) -> Tensor:
        """See `EagleHead`: all of the model's."""
        return torch.arange(self.spec.vocab_size, device=self.embedding.weight.device)

    @property
    def head(self) -> Linear:
        """The model's."""
        return self._model[0].head

    def begin(self, tapped: Tensor) -> Tensor:
        """The states behind the model's last layer, [T, hidden], as it compares them with its vocabulary."""
        normed: Tensor = self.model_norm(tapped)
        return normed

    def forward(
        self, token_ids: Tensor, hidden: Tensor, inputs: StepInputs, kv: KVStore, model: DecoderModel
    ) -> Tensor:
        entering = torch.cat((self.input_norm(self.embedding(token_ids)), self.hidden_norm(hidden)), dim=1)
        ops = TorchLinearOps(self.join(entering))
        self.run(ops, model.prepare(inputs, kv))
        return ops.stream

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """The layer over what was joined, and the norm behind it."""
        for part in self.parts:
            part.run(ops, step)
        ops.norm_stream(self.norm)

    def guess(self, hidden: Tensor) -> Tensor:
        """The layer's states [S, hidden] to the likeliest tokens behind them, [S]."""
        return self._model[0].logits(hidden).argmax(-1)

    def products(self) -> tuple[Product, ...]:
        """Every product beside the model's head, in order."""
        inner = [
            attrs.evolve(each, name=f"{each.name}, drafts") for part in self.parts for each in part.products()
        ]
        return Product("token and state, drafts", self.join, added=False), *inner

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Those around the layer, by their whole names."""
        around: tuple[RMSNorm | Linear, ...] = (self.input_norm, self.hidden_norm, self.join, self.norm)
        return {f"{name}.weight": each.weight for name, each in zip(self._names[1:], around, strict=True)}

    def check_stored(self, folder: str) -> None:
        """Raise `ModelLoadError` if a checkpoint lacks the layer, though its config may count it."""
        join = self._names[3]
        if not any(each.name.startswith(join) for each in tensors_in(folder)):
            raise ModelLoadError(
                f"{folder}: has no layer that predicts further tokens ({join} is missing, which converted copies often lack): "
                "take the original checkpoint, or speculate ngram"
            )
