"""An encoder-only transformer: BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020), ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.feeds import MLP
from nanoserve.adapters.pytorch.layers.norm import LayerNorm, Norms, make_norm
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.bidirectional.part import BidirectionalAttention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.ports.model_spec import EncoderSpec, ModelSpec


class Encoder(DecoderModel):
    """norm(x + attention(x)), then norm(x + mlp(x)), in every layer, over normed sums of vectors of tokens, positions and types.

    Attributes:
        added: what is added to the vectors of tokens, [types * positions, hidden], the rows of one type together; None for nothing.
    """

    embedding_name, norm_name, layers_name = "word_embeddings", "LayerNorm", "encoder.layer"

    def __init__(self, spec: ModelSpec, ranks: Communicator = ALONE) -> None:
        super().__init__(spec, ranks)
        assert spec.encoder is not None
        self.encoder: EncoderSpec = spec.encoder
        self.norm = None
        self.embedding_norm = LayerNorm(spec.hidden_size, spec.norm)
        self.added: nn.Parameter | None = None
        if self.encoder.positions:
            self.positions, self.types, self.added = (
                nn.Parameter(torch.empty(rows, spec.hidden_size), requires_grad=False)
                for rows in (
                    self.encoder.positions,
                    self.encoder.token_types,
                    self.encoder.positions * self.encoder.token_types,
                )
            )
        prefix = self.encoder.prefix
        self.unused = (f"{prefix}.pooler.", "pooler.", "cls.", "lm_head.", "embeddings.position_ids")
        self.unused += (f"{prefix}.embeddings.position_ids", "head.", "decoder.")

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention to both sides and a feed, each with a norm of the sum behind it."""
        attention, output = "attention.self", "attention.output"
        projections = tuple(f"{attention}.{name}" for name in ("query", "key", "value"))
        norms = Norms(None, of_sum=f"{output}.LayerNorm"), Norms(None, of_sum="output.LayerNorm")
        return (
            BidirectionalAttention(self.spec, layer, norms[0], projections, f"{output}.dense"),
            MLP(self.spec, layer, norms[1], ("intermediate.dense", "output.dense")),
        )

    def embed(self, inputs: StepInputs) -> Tensor:
        vectors = super().embed(inputs)
        if self.added is not None:
            places = inputs.positions + self.encoder.first_position
            if inputs.token_types is not None and self.encoder.token_types > 1:
                places = places + inputs.token_types * self.encoder.positions
            vectors = vectors + nn.functional.embedding(places, self.added)
        normed: Tensor = self.embedding_norm(vectors)
        return normed

    def add_positions(self, stream: Tensor, rows: Tensor, scratch: Tensor) -> None:
        """Add the rows of `added` that each token has to the tokens' vectors [T, hidden] on a GPU, and norm the sums."""
        from nanoserve.kernels.pointwise.launch import layer_norm_into  # noqa: PLC0415 - Triton, for a GPU alone

        if self.added is not None:
            count = len(stream)
            stream.add_(torch.index_select(self.added, 0, rows[:count], out=scratch[:count]))
        norm = self.embedding_norm
        layer_norm_into(stream, norm.weight, norm.bias, stream, eps=norm.eps)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor that a checkpoint must hold, by its name there, beside a classifier."""
        tensors = prefixed(self.embedding_name, self.embedding.checkpoint_tensors())
        if self.added is not None:
            tensors |= {
                "position_embeddings.weight": self.positions,
                "token_type_embeddings.weight": self.types,
            }
        tensors |= prefixed(self.norm_name, self.embedding_norm.checkpoint_tensors())
        tensors = prefixed("embeddings", tensors)
        for number, parts in enumerate(self.layers):
            for part in parts:
                tensors |= prefixed(f"{self.layers_name}.{number}", part.checkpoint_tensors())
        if self.norm is not None:
            tensors |= prefixed("final_norm", self.norm.checkpoint_tensors())
        return prefixed(self.encoder.prefix, tensors) | self.pooled_tensors()

    def arrange(self) -> None:
        """See `Stored`: sum up each position with each type."""
        super().arrange()
        if self.added is not None:
            sums = self.types[:, None] + self.positions
            self.added.copy_(sums.flatten(0, 1))


class ModernBert(Encoder):
    """x + attention(norm(x)), then x + mlp(norm(x)), in every layer; heads turn, and two layers of three see a window alone."""

    embedding_name, norm_name, layers_name = "tok_embeddings", "norm", "layers"

    def __init__(self, spec: ModelSpec, ranks: Communicator = ALONE) -> None:
        super().__init__(spec, ranks)
        self.norm = make_norm(spec.hidden_size, spec.norm)

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention to both sides and a gated feed; what the first layer reads is normed already."""
        return (
            BidirectionalAttention(
                self.spec, layer, Norms("attn_norm" if layer else None), ("attn.Wqkv",), "attn.Wo"
            ),
            MLP(self.spec, layer, Norms("mlp_norm"), ("mlp.Wi", "mlp.Wo")),
        )
