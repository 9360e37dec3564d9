"""Launches of the gated delta rule: the newest token of each place, or chunks of prompts."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from nanoserve.kernels.delta_rule.triton import delta_rule_kernel, keep_recent_kernel
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights
from nanoserve.kernels.triton_launch import launch_options

CHANNELS_PER_PROGRAM = 1024
"""That one program keeps of the last tokens of a chunk."""


def delta_rule_newest(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    out: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    tables: Tensor,
    pdl: bool = False,
) -> None:
    """Compute the newest token of each place, and write its row's state.

    Places must not share a row, except for padding: a row of length 1 may fill any number of places, which then race
    for its one slot.

    Args:
        projected: [B, width], contiguous, of each place's newest token.
        states: of the layer, written in the rows' slots.
        weights: of the layer; convolution and norm in any dtype.
        heads: its dimensions.
        out: [B, inner], contiguous, overwritten.
        batch_rows: int32 [B], which row each place is.
        lengths: int32 [rows], tokens of each row, the newest included; a row of length 1 has no state.
        tables: int32 [rows, ...], the slot of each row in the first column.
        pdl: see `nanoserve.kernels.triton_launch`. Everything but `projected` and what the convolution keeps is read
            before the wait.
    """
    rows = {"rows": batch_rows, "lengths": lengths, "tables": tables}
    _launch(projected, states, weights, heads, out, **rows, newest=True, pdl=pdl)


def delta_rule_chunks(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    out: Tensor,
    *,
    spans: Tensor,
    tables: Tensor,
) -> None:
    """Compute every token of some chunks, in order, and write their rows' states.

    Args:
        projected: [T, width], contiguous.
        states: of the layer, written in the rows' slots.
        weights: of the layer.
        heads: its dimensions.
        out: [T, inner], contiguous; written where there is a chunk.
        spans: int32 [N, 4]: of each chunk its row, the index of its first token, how many it has, and the position of the
            first. A chunk at position 0 has no state before it. No two chunks are of one row, except for padding.
        tables: int32 [rows, ...], the slot of each row in the first column.
    """
    rows = {"rows": spans, "lengths": spans, "tables": tables}
    _launch(projected, states, weights, heads, out, **rows, newest=False, pdl=False)
    blocks = triton.cdiv(heads.channels, CHANNELS_PER_PROGRAM)
    keep_recent_kernel[(len(spans), blocks)](
        projected, states.recent, spans, tables, tables.stride(0),
        WIDTH=heads.width, CHANNELS=heads.channels, TAPS=heads.taps, BLOCK=CHANNELS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip


def _launch(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    out: Tensor,
    *,
    rows: Tensor,
    lengths: Tensor,
    tables: Tensor,
    newest: bool,
    pdl: bool,
) -> None:
    key, value = triton.next_power_of_2(heads.key_dim), triton.next_power_of_2(heads.value_dim)
    sizes: dict[str, Any] = {
        "KEY_HEADS": heads.num_key_heads,
        "VALUE_HEADS": heads.num_value_heads,
        "KEY_DIM": heads.key_dim,
        "VALUE_DIM": heads.value_dim,
        "TAPS": heads.taps,
        "PADDED_KEY": key,
        "PADDED_VALUE": value,
        "PADDED_TAPS": triton.next_power_of_2(heads.taps),
    }
    delta_rule_kernel[(len(rows), heads.num_value_heads)](
        projected, out, *states, weights.convolution, weights.decay_log, weights.decay_bias, weights.norm,
        rows, lengths, tables, tables.stride(0), weights.eps, heads.key_dim**-0.5,
        **sizes, NEWEST=newest, PDL=pdl, num_warps=_warps(key * value), **launch_options(pdl),
    )  # fmt: skip


def _warps(elements: int) -> int:
    """64 elements of the state per thread: with what a token needs beside them they fit into registers."""
    return min(16, max(1, elements // (32 * 64)))
