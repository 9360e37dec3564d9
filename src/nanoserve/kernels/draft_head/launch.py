"""The launches around the layer of a head that drafts."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.draft_head.triton import enter_kernel, guess_kernel, keep_kernel

TILE = 4096
"""Logits that a program looks at together."""
WARPS = 8


def enter_head(
    tokens: Tensor,
    states: Tensor,
    *,
    token_rows: Tensor,
    positions: Tensor,
    embedding: Tensor,
    token_norm: Tensor,
    state_norm: Tensor,
    out: Tensor,
    eps: float,
    scale: float | None = None,
    newest: bool = False,
    width: int = 1,
    keeps_normed: bool = False,
) -> None:
    """Write the inputs of the head's layer at each position: the vector of the next token, and the hidden state, each normed.

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on; -1, a draft that is none, stands for token 0.
        states: [T, K], contiguous, a position's hidden state each.
        token_rows: int32 [T], whose token each one is.
        positions: int32 [T], of the hidden states.
        embedding: [V, K], contiguous.
        token_norm: [K], the weight of the norm of vectors.
        state_norm: [K], that of states.
        out: [T, 2 K], contiguous, the vector's norm before the state's.
        eps: of both norms.
        scale: multiplies every vector, in float32; None for one.
        newest: whether `positions` are instead int32 [R], how many tokens of each row lead to its first position, that of the last one.
        width: with `newest`, positions of each row; token_rows is then [T / width].
        keeps_normed: whether a state's norm takes its place.
    """
    size = states.shape[1]
    block = triton.next_power_of_2(size)
    enter_kernel[(len(states),)](
        tokens_ptr=tokens, rows_ptr=token_rows, positions_ptr=positions, embedding_ptr=embedding, states_ptr=states,
        token_norm_ptr=token_norm, state_norm_ptr=state_norm, out_ptr=out,
        tokens_width=tokens.stride(0), scale=scale, eps=eps,
        NEWEST=newest, WIDTH=width, KEEPS_NORMED=keeps_normed, K=size, BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )  # fmt: skip


def guess_tokens(
    logits: Tensor,
    *,
    token_ids: Tensor,
    batch_rows: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    limits: Tensor,
    takes_drafts: Tensor,
    ends: Tensor,
    ahead: int,
    next_ahead: int,
) -> None:
    """Write the likeliest token after each row of a batch, -1 if it takes no drafts, and the head's next position.

    Args:
        logits: [B, V], contiguous, of tokens that the head knows.
        token_ids: int32 [V], what these are called in the model's vocabulary.
        batch_rows: int32 [B], rows; they may only repeat where `takes_drafts` is 0.
        tokens: int32 [R, W], written `ahead` behind the end of a row, which must lie within W.
        lengths: int32 [R], tokens of each row.
        limits: int32 [R], how many each row may come to have.
        takes_drafts: int32 [R], as in `ngrams.launch.propose_ngrams`.
        ends: int32 [R], becomes the length and `next_ahead`, at most the limit.
        ahead: drafts that the row has already.
        next_ahead: how far behind the newest token the head's next position is.
    """
    guess_kernel[(len(logits),)](
        logits_ptr=logits, token_ids_ptr=token_ids, rows_ptr=batch_rows, tokens_ptr=tokens, tokens_width=tokens.stride(0),
        lengths_ptr=lengths, limits_ptr=limits, takes_drafts_ptr=takes_drafts, ends_ptr=ends, ahead=ahead, next_ahead=next_ahead,
        VOCAB=logits.shape[1], BLOCK=min(TILE, triton.next_power_of_2(logits.shape[1])), num_warps=WARPS,
    )  # fmt: skip


def keep_states(
    states: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    ends: Tensor,
    kept: Tensor,
    width: int = 1,
    counted: bool = True,
) -> None:
    """Keep, for each row of a batch, the state from which the head guesses next: that before its newest token.

    Args:
        states: [B * width, K], contiguous, of positions of each row from `ends` - 1 on.
        batch_rows: int32 [B], rows; those that repeat must have gained nothing, or what is kept of them must not count.
        lengths: int32 [R], tokens of each row.
        ends: int32 [R], how many it had before this step; becomes `lengths`.
        kept: [R, K], contiguous; a row that has gained nothing keeps what it has.
        width: states of each row.
        counted: whether the state is the one that belongs to the tokens gained; else it is the only one, whatever `ends` says.
    """
    size = states.shape[1]
    block = triton.next_power_of_2(size)
    keep_kernel[(len(batch_rows),)](
        states_ptr=states, rows_ptr=batch_rows, lengths_ptr=lengths, ends_ptr=ends, kept_ptr=kept,
        COUNTED=counted, WIDTH=width, K=size, BLOCK=block, num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
