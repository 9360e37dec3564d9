"""The memory a step computes in, allocated once for the largest step: graphs keep the addresses they were captured with."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.kernels.decode_attention.launch import SplitScratch
from nanoserve.kernels.linear.launch import Workspace as LinearWorkspace
from nanoserve.kernels.sampling.launch import DrawScratch
from nanoserve.ports.model_spec import ModelSpec


@attrs.frozen(eq=False, kw_only=True)
class Workspace:
    """Activations of up to T tokens and logits of up to S rows, in the model's dtype.

    Attributes:
        stream: [T, hidden], the residual stream; `normed`, its norm.
        qkv: [T, (num_heads + 2 num_kv_heads) head_dim]; `query` and `attended`, [T, num_heads head_dim].
        gate_up: [T, 2 intermediate]; `gated`, [T, intermediate].
        chosen: [S, hidden], the tokens that get logits; `chosen_attended`, [S, num_heads head_dim].
        logits: [S, vocab].
        partial_sums: float32, what the slices of products that the next norm adds up leave behind.
    """

    stream: Tensor
    normed: Tensor
    qkv: Tensor
    query: Tensor
    attended: Tensor
    gate_up: Tensor
    gated: Tensor
    chosen: Tensor
    chosen_attended: Tensor
    logits: Tensor
    partial_sums: Tensor
    linear: LinearWorkspace
    attention: SplitScratch
    sampling: DrawScratch


MOST_SLICES = 8
"""See `kernels.linear.tuning.split_count`."""
MOST_SKINNY_ROWS = 64
"""Batches up to this size use `skinny_linear`, larger ones the vendor's library."""


def make_workspace(
    spec: ModelSpec,
    *,
    max_tokens: int,
    max_num_seqs: int,
    max_place_splits: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Workspace:
    """Allocate for the largest step; `max_place_splits` bounds places times splits of decode attention."""
    queries = spec.num_heads * spec.head_dim
    widest = queries + 2 * spec.num_kv_heads * spec.head_dim

    def empty(rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device)

    return Workspace(
        stream=empty(max_tokens, spec.hidden_size),
        normed=empty(max_tokens, spec.hidden_size),
        qkv=empty(max_tokens, widest),
        query=empty(max_tokens, queries),
        attended=empty(max_tokens, queries),
        gate_up=empty(max_tokens, 2 * spec.intermediate_size),
        gated=empty(max_tokens, spec.intermediate_size),
        chosen=empty(max_num_seqs, spec.hidden_size),
        chosen_attended=empty(max_num_seqs, queries),
        logits=empty(max_num_seqs, spec.vocab_size),
        partial_sums=torch.empty(
            MOST_SLICES * MOST_SKINNY_ROWS * spec.hidden_size, dtype=torch.float32, device=device
        ),
        linear=LinearWorkspace.create(
            [
                (widest, spec.hidden_size),
                (2 * spec.intermediate_size, spec.hidden_size),
                (spec.vocab_size, spec.hidden_size),
            ],
            max_m=MOST_SKINNY_ROWS,
            dtype=dtype,
            device=device,
        ),
        attention=SplitScratch.create(max_place_splits, spec.num_heads, spec.head_dim, 1, device),
        sampling=DrawScratch(max_batch=max_num_seqs, vocab_size=spec.vocab_size, device=device),
    )
