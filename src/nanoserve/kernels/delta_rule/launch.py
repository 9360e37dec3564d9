"""Launches of the gated delta rule: the newest token of each place, or chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import triton
from torch import Tensor

from nanoserve.kernels.delta_rule import triton_tiles, tuning
from nanoserve.kernels.delta_rule.triton import delta_rule_kernel, keep_recent_kernel, newest_token_kernel
from nanoserve.kernels.device.launch import launch_options, shared_memory
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights

CHANNELS_PER_PROGRAM = 1024
"""Channels of the last tokens of a chunk that one program keeps."""
RESULTS_PER_PROGRAM = 32
"""Results of a value head that one program norms."""


class TileSpace(NamedTuple):
    """The buffers between the kernels for up to T tokens in tiles, beside their results.

    Attributes:
        heads: flat, T times all query and key heads, of length one, in the model's dtype.
        systems: flat, T times a row of each of two matrices [TILE, TILE] per value head, in the model's dtype.
        decays: flat float32, T times the value heads.
    """

    heads: Tensor
    systems: Tensor
    decays: Tensor

    @classmethod
    def create(
        cls, tokens: int, nets: Sequence[DeltaHeads], *, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """For so many tokens of the largest of some nets; nothing if there are none."""
        keys = max((2 * heads.num_key_heads * heads.key_dim for heads in nets), default=0)
        value_heads = max((heads.num_value_heads for heads in nets), default=0)
        return cls(
            torch.empty(tokens * keys, dtype=dtype, device=device),
            torch.empty(tokens * 2 * tuning.TILE * value_heads, dtype=dtype, device=device),
            torch.empty(tokens * value_heads, dtype=torch.float32, device=device),
        )


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
    invariant: bool = False,
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
        invariant: compute the same bits as `delta_rule_chunks`.
        pdl: see `nanoserve.kernels.device.pdl`. Everything but `projected` and what the convolution keeps is read
            before the wait. With `invariant` it changes nothing.
    """
    if invariant:
        what = projected, states, weights, heads, out
        _launch_token_by_token(*what, rows=batch_rows, lengths=lengths, tables=tables, newest=True)
        return
    sizes, value = _token_sizes(heads), triton.next_power_of_2(heads.value_dim)
    columns = min(tuning.NEWEST_COLUMNS, value)
    newest_token_kernel[(len(batch_rows), heads.num_value_heads)](
        projected_ptr=projected, out_ptr=out, sums_ptr=states.sums, recent_ptr=states.recent,
        conv_ptr=weights.convolution, decay_log_ptr=weights.decay_log, decay_bias_ptr=weights.decay_bias,
        norm_ptr=weights.norm, rows_ptr=batch_rows, lengths_ptr=lengths, tables_ptr=tables,
        table_stride=tables.stride(0), eps=weights.eps, scale=heads.key_dim**-0.5,
        **sizes, COLUMNS=columns,
        PDL=pdl, num_warps=_warps(sizes["PADDED_KEY"] * columns), **launch_options(pdl),
    )  # fmt: skip


def delta_rule_chunks(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    out: Tensor,
    *,
    spans: Tensor,
    tables: Tensor,
    keep: bool = True,
) -> None:
    """Compute every token of some chunks, in order, and with `keep` write their rows' states.

    Args, where they are not those of `delta_rule_newest`:
        projected: [T, width], contiguous.
        out: [T, inner], contiguous; written where there is a chunk.
        spans: int32 [N, 4]: of each chunk its row, the index of its first token, how many it has, and the position of the
            first. A chunk at position 0 has no state before it. No two chunks are of one row, except for padding.
    """
    what = projected, states, weights, heads, out
    _launch_token_by_token(*what, rows=spans, lengths=spans, tables=tables, newest=False, keep=keep)
    if keep:
        _keep_recent(projected, states, heads, spans, tables)


def delta_rule_tiles(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    out: Tensor,
    *,
    spans: Tensor,
    tables: Tensor,
    space: TileSpace,
) -> None:
    """As `delta_rule_chunks`, in tiles of matrix products: much faster, and the same bits only where chunks are cut at tiles.

    Its arguments, and the `space` for T tokens, which is overwritten.
    """
    padded = {"PADDED_KEY": max(16, triton.next_power_of_2(heads.key_dim)), "TILE": tuning.TILE}
    padded_value = max(16, triton.next_power_of_2(heads.value_dim))
    room = shared_memory(projected.device)
    advance = tuning.choose_advance(heads, len(spans), projected.dtype, room)
    tiles = tuning.most_tiles(len(projected), len(spans))
    precision = "tf32x3" if projected.dtype == torch.float32 else "tf32"
    triton_tiles.convolve_tiles_kernel[(tiles * (tuning.TILE // tuning.CONVOLVED), 2 * heads.num_key_heads + heads.num_value_heads)](
        projected_ptr=projected, heads_ptr=space.heads, values_ptr=out, recent_ptr=states.recent,
        conv_ptr=weights.convolution, spans_ptr=spans, tables_ptr=tables,
        num_spans=len(spans), table_stride=tables.stride(0), scale=heads.key_dim**-0.5,
        **_sizes(heads, "VALUE_HEADS"), **padded, TAPS=heads.taps, PADDED_VALUE=padded_value, PART=tuning.CONVOLVED, num_warps=4,
    )  # fmt: skip
    triton_tiles.solve_tiles_kernel[(tiles, heads.num_value_heads)](
        heads_ptr=space.heads, projected_ptr=projected, systems_ptr=space.systems, g_ptr=space.decays,
        decay_log_ptr=weights.decay_log, decay_bias_ptr=weights.decay_bias, spans_ptr=spans,
        num_spans=len(spans),
        **_sizes(heads, "VALUE_DIM", "INNER", "CHANNELS"), **padded, LEVELS=tuning.TILE.bit_length() - 1,
        PRECISION=precision, num_warps=4,
    )  # fmt: skip
    whole = advance.columns >= heads.value_dim
    triton_tiles.advance_rows_kernel[(len(spans), heads.num_value_heads, triton.cdiv(heads.value_dim, advance.columns))](
        heads_ptr=space.heads, systems_ptr=space.systems, g_ptr=space.decays, projected_ptr=projected,
        norm_ptr=weights.norm, out_ptr=out, sums_ptr=states.sums, spans_ptr=spans, tables_ptr=tables,
        table_stride=tables.stride(0), eps=weights.eps,
        **_sizes(heads, "CHANNELS"), **padded, COLUMNS=advance.columns, STAGES=advance.stages,
        WHOLE=whole, PRECISION=precision, num_warps=advance.warps,
    )  # fmt: skip
    if not whole:
        results = len(projected) * heads.num_value_heads
        triton_tiles.norm_and_gate_kernel[(triton.cdiv(results, RESULTS_PER_PROGRAM),)](
            projected_ptr=projected, norm_ptr=weights.norm, out_ptr=out,
            num_tokens=len(projected), eps=weights.eps,
            VALUE_HEADS=heads.num_value_heads, VALUE_DIM=heads.value_dim, WIDTH=heads.width,
            PADDED_VALUE=padded_value, BLOCK=RESULTS_PER_PROGRAM, num_warps=4,
        )  # fmt: skip
    _keep_recent(projected, states, heads, spans, tables)


def _keep_recent(
    projected: Tensor, states: DeltaStates, heads: DeltaHeads, spans: Tensor, tables: Tensor
) -> None:
    blocks = triton.cdiv(heads.channels, CHANNELS_PER_PROGRAM)
    keep_recent_kernel[(len(spans), blocks)](
        projected_ptr=projected, recent_ptr=states.recent, spans_ptr=spans, tables_ptr=tables,
        table_stride=tables.stride(0),
        WIDTH=heads.width, CHANNELS=heads.channels, TAPS=heads.taps, BLOCK=CHANNELS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip


def _sizes(heads: DeltaHeads, *unused: str) -> dict[str, Any]:
    """The dimensions as kernels know them, except those that one has no use for."""
    sizes = {
        "KEY_HEADS": heads.num_key_heads, "VALUE_HEADS": heads.num_value_heads,
        "KEY_DIM": heads.key_dim, "VALUE_DIM": heads.value_dim,
        "KEYS": heads.num_key_heads * heads.key_dim, "INNER": heads.inner,
        "CHANNELS": heads.channels, "WIDTH": heads.width,
    }  # fmt: skip
    return {name: size for name, size in sizes.items() if name not in unused}


def _token_sizes(heads: DeltaHeads) -> dict[str, Any]:
    padded = {"PADDED_KEY": heads.key_dim, "PADDED_VALUE": heads.value_dim, "PADDED_TAPS": heads.taps}
    powers = {name: triton.next_power_of_2(size) for name, size in padded.items()}
    return {**_sizes(heads), "TAPS": heads.taps, **powers}


def _launch_token_by_token(
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
    keep: bool = True,
) -> None:
    sizes = _token_sizes(heads)
    # The compiler may copy the loop's body, and must not round products and sums together in each copy's own way.
    delta_rule_kernel[(len(rows), heads.num_value_heads)](
        projected_ptr=projected, out_ptr=out, sums_ptr=states.sums, recent_ptr=states.recent,
        conv_ptr=weights.convolution, decay_log_ptr=weights.decay_log, decay_bias_ptr=weights.decay_bias,
        norm_ptr=weights.norm, rows_ptr=rows, lengths_ptr=lengths, tables_ptr=tables,
        table_stride=tables.stride(0), newest=int(newest), keep=int(keep), eps=weights.eps, scale=heads.key_dim**-0.5,
        **sizes,
        num_warps=_warps(sizes["PADDED_KEY"] * sizes["PADDED_VALUE"]), enable_fp_fusion=False,
    )  # fmt: skip


def _warps(elements: int) -> int:
    """64 elements of the state per thread: they fit into registers beside a token's values."""
    return min(16, max(1, elements // (32 * 64)))
