"""A step as a chain of kernels: one token for each place of a batch, or prompt chunks and decoding rows together.

A model page says what its layers are; here the same layers are spelled in fused kernels. There are three spellings, and
the batch decides (`docs/performance.md` has the crossovers):

- `row`, one place: products on the CUDA cores with norm, gate and residual fused in;
- `skinny`, up to 64 places: tensor-core products whose partial sums the next norm adds up;
- `wide`, more places and prompt chunks: the vendor's products with small kernels between them, or, where results
  must not depend on the batch, products with one fixed order of summation.
"""

from __future__ import annotations

import functools
from typing import cast

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.attending import Attend, Attending
from nanoserve.adapters.pytorch.cuda.workspace import MOST_SKINNY_ROWS, Workspace
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.models.llama import Llama, LlamaLayer
from nanoserve.kernels.embedding.launch import embed_newest, embed_tokens
from nanoserve.kernels.linear.launch import invariant_linear, row_linear, skinny_linear, split_linear
from nanoserve.kernels.linear.tuning import split_count
from nanoserve.kernels.rms_norm.launch import add_rms_norm_into
from nanoserve.kernels.silu_mul.launch import silu_mul_into


@attrs.frozen(eq=False)
class Block:
    """One layer's weights."""

    attention_norm: RMSNorm
    qkv: Linear
    output: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


def _block(layer: LlamaLayer) -> Block:
    attention, mlp = layer.attention, layer.mlp
    return Block(
        layer.attention_norm,
        cast("Linear", attention.qkv),
        cast("Linear", attention.output),
        layer.mlp_norm,
        cast("Linear", mlp.gate_up),
        cast("Linear", mlp.down),
    )


def _chosen(rows: Tensor, indices: Tensor, space: Tensor) -> Tensor:
    """Some rows of a tensor, in the first rows of `space`."""
    return torch.index_select(rows, 0, indices, out=space[: len(indices)])


class Chains:
    """Launches the kernels of a step; allocates nothing and waits for nothing, so that it can be captured."""

    def __init__(
        self,
        model: Llama,
        arena: Arena,
        space: Workspace,
        attending: Attending,
        *,
        invariant: bool,
        brief: bool = False,
    ) -> None:
        """`brief` passes through the first layer of each cache group alone: every kernel once, for rehearsals."""
        self._blocks = [_block(cast("LlamaLayer", layer)) for layer in model.layers]
        self._layers = (
            [group.layers[0] for group in model.spec.cache_groups] if brief else range(len(self._blocks))
        )
        self._embedding = model.embedding.weight
        self._norm = model.norm
        self._head = cast("Linear", model.head)
        self._arena = arena
        self._space = space
        self._attending = attending
        self._invariant = invariant

    def decode(self, places: Tensor, *, splits: int, pdl: bool) -> Tensor:
        """One token for each of `places` [B], rows; returns logits [B, vocab], valid until the next step."""
        batch = len(places)
        space, arena = self._space, self._arena
        stream = space.stream[:batch]
        embed_newest(arena.tokens, arena.lengths, places, self._embedding, stream, pdl=pdl)
        logits = space.logits[:batch]
        if self._invariant:
            attend = self._attending.invariant_decode(places)
            self._head_product(self._wide(stream, attend, pdl=False), logits)
            return logits
        attend = self._attending.decode(places, splits=splits, pdl=pdl)
        if batch == 1:
            self._row(stream, attend, logits, pdl=pdl)
        elif batch <= MOST_SKINNY_ROWS:
            self._skinny(stream, attend, logits, pdl=pdl)
        else:
            self._head_product(self._wide(stream, attend, pdl=pdl), logits)
        return logits

    def mixed(
        self,
        num_chunk_tokens: int,
        num_tiles: int,
        num_decoding: int,
        *,
        splits: int,
        num_chosen: int | None = None,
    ) -> Tensor:
        """Chunks' tokens, described in the arena, then the decoding places; normed hidden states [T, hidden].

        With `num_chosen`, those alone of the tokens that the arena's `logits_indices` choose: the last layer then
        computes nothing for the others but their keys and values.
        """
        arena, total = self._arena, num_chunk_tokens + num_decoding
        stream, places = self._space.stream[:total], arena.places[:num_decoding]
        rows, positions = arena.token_rows[:num_chunk_tokens], arena.positions[:num_chunk_tokens]
        embed_tokens(arena.tokens, rows, positions, self._embedding, stream[:num_chunk_tokens])
        if num_decoding:
            embed_newest(arena.tokens, arena.lengths, places, self._embedding, stream[num_chunk_tokens:])
        attending = functools.partial(
            self._attending.mixed, num_chunk_tokens, places, splits=splits, invariant=self._invariant
        )
        if num_chosen is None:
            return self._wide(stream, attending(arena.tiles[:num_tiles]), pdl=False)
        last = attending(arena.chosen_tiles[: num_chosen - num_decoding])
        chosen = arena.logits_indices[:num_chosen]
        return self._wide(stream, attending(arena.tiles[:num_tiles]), last, chosen, pdl=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 [S, vocab] of normed hidden states [S, hidden]; in memory of their own."""
        out = hidden.new_empty(len(hidden), self._space.logits.shape[1])
        self._head_product(hidden, out)
        return out.float()

    def choose(self, hidden: Tensor, count: int) -> Tensor:
        """The rows [count, hidden] of hidden states [T, hidden] that the arena's `logits_indices` choose."""
        return _chosen(hidden, self._arena.logits_indices[:count], self._space.chosen)

    def chosen_logits(self, chosen: Tensor) -> Tensor:
        """Logits [S, vocab] of normed hidden states [S, hidden], in the workspace."""
        logits = self._space.logits[: len(chosen)]
        self._head_product(chosen, logits)
        return logits

    def _row(self, stream: Tensor, attend: Attend, logits: Tensor, *, pdl: bool) -> None:
        space = self._space
        qkv, attended, gated = space.qkv[:1], space.attended[:1], space.gated[:1]
        for index in self._layers:
            block = self._blocks[index]
            norm = block.attention_norm
            row_linear(
                stream,
                block.qkv.weight,
                qkv,
                bias=block.qkv.bias,
                norm_weight=norm.weight,
                eps=norm.eps,
                pdl=pdl,
            )
            attend(index, qkv, attended)
            output, down, norm = block.output, block.down, block.mlp_norm
            row_linear(attended, output.weight, stream, bias=output.bias, residual=stream, pdl=pdl)
            row_linear(
                stream,
                block.gate_up.weight,
                gated,
                bias=block.gate_up.bias,
                norm_weight=norm.weight,
                eps=norm.eps,
                gate=True,
                pdl=pdl,
            )
            row_linear(gated, down.weight, stream, bias=down.bias, residual=stream, pdl=pdl)
        norm = self._norm
        row_linear(stream, self._head.weight, logits, norm_weight=norm.weight, eps=norm.eps, pdl=pdl)

    def _skinny(self, stream: Tensor, attend: Attend, logits: Tensor, *, pdl: bool) -> None:
        batch, space = len(stream), self._space
        normed, qkv = space.normed[:batch], space.qkv[:batch]
        attended, gated = space.attended[:batch], space.gated[:batch]
        self._add_norm(stream, self._blocks[0].attention_norm, normed, None, None, pdl=pdl)
        for index in self._layers:
            block = self._blocks[index]
            skinny_linear(normed, block.qkv.weight, qkv, bias=block.qkv.bias, workspace=space.linear, pdl=pdl)
            attend(index, qkv, attended)
            partials = self._partial_sums(attended, block.output, pdl)
            self._add_norm(stream, block.mlp_norm, normed, partials, block.output.bias, pdl=pdl)
            skinny_linear(
                normed,
                block.gate_up.weight,
                gated,
                bias=block.gate_up.bias,
                gate=True,
                workspace=space.linear,
                pdl=pdl,
            )
            partials = self._partial_sums(gated, block.down, pdl)
            self._add_norm(stream, self._norm_after(index), normed, partials, block.down.bias, pdl=pdl)
        skinny_linear(normed, self._head.weight, logits, workspace=space.linear, pdl=pdl)

    def _wide(
        self,
        stream: Tensor,
        attend: Attend,
        last: Attend | None = None,
        chosen: Tensor | None = None,
        *,
        pdl: bool,
    ) -> Tensor:
        """Normed hidden states of all tokens, or of the `chosen` ones, which are all that `last` has to attend for."""
        normed = self._space.normed[: len(stream)]
        self._add_norm(stream, self._blocks[0].attention_norm, normed, None, None, pdl=pdl)
        for index in self._layers[:-1]:
            self._wide_layer(index, stream, attend, None, pdl=pdl)
        return self._wide_layer(self._layers[-1], stream, last or attend, chosen, pdl=pdl)

    def _wide_layer(
        self, index: int, stream: Tensor, attend: Attend, chosen: Tensor | None, *, pdl: bool
    ) -> Tensor:
        """One layer, which finds its normed input in the workspace and leaves the next one's there."""
        space, block, count = self._space, self._blocks[index], len(stream)
        qkv, attended = space.qkv[:count], space.attended[:count]
        self._product(space.normed[:count], block.qkv, qkv)
        attend(index, qkv, attended)
        if chosen is not None:
            count = len(chosen)
            stream = _chosen(stream, chosen, space.chosen)
            attended = _chosen(attended, chosen, space.chosen_attended)
        normed, gate_up, gated = space.normed[:count], space.gate_up[:count], space.gated[:count]
        if count:
            self._add_product(attended, block.output, stream)
            self._add_norm(stream, block.mlp_norm, normed, None, None, pdl=pdl)
            self._product(normed, block.gate_up, gate_up)
            silu_mul_into(gate_up, gated, pdl=pdl)
            self._add_product(gated, block.down, stream)
            self._add_norm(stream, self._norm_after(index), normed, None, None, pdl=pdl)
        return normed

    def _partial_sums(self, x: Tensor, linear: Linear, pdl: bool) -> Tensor:
        size, splits = len(linear.weight), split_count(len(x), *linear.weight.shape)
        partials = self._space.partial_sums[: splits * len(x) * size].view(splits, len(x), size)
        split_linear(x, linear.weight, partials, pdl=pdl)
        return partials

    def _add_norm(
        self,
        stream: Tensor,
        norm: RMSNorm,
        out: Tensor,
        partials: Tensor | None,
        bias: Tensor | None,
        *,
        pdl: bool,
    ) -> None:
        add_rms_norm_into(stream, norm.weight, out, partials=partials, bias=bias, eps=norm.eps, pdl=pdl)

    def _norm_after(self, index: int) -> RMSNorm:
        return self._norm if index + 1 == len(self._blocks) else self._blocks[index + 1].attention_norm

    def _head_product(self, x: Tensor, out: Tensor) -> None:
        self._product(x, self._head, out)

    def _product(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        if self._invariant:
            invariant_linear(x, linear.weight, out, bias=linear.bias)
        elif linear.bias is None:
            torch.mm(x, linear.weight.t(), out=out)
        else:
            torch.addmm(linear.bias, x, linear.weight.t(), out=out)

    def _add_product(self, x: Tensor, linear: Linear, stream: Tensor) -> None:
        """Add a product to the stream, inside the product's kernel: no tensor for it alone, and less for the norm to read."""
        if self._invariant:
            invariant_linear(x, linear.weight, stream, bias=linear.bias, residual=stream)
            return
        torch.addmm(stream, x, linear.weight.t(), out=stream)
        if linear.bias is not None:
            stream += linear.bias
