"""The gated delta rule on a CPU: rows with one token together, longer chunks in tiles of matrix products.

A tile of up to 64 tokens needs the state before it once: the changes that its tokens make follow from one triangular system (the
WY form of Yang et al. 2024). Tiles begin at multiples of 64 of a row's positions, so a row that is cut there computes
what it would have computed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights

TILE = 64
L2_EPS = 1e-6


class Tokens(NamedTuple):
    """The inputs of the rule, float32, value heads first or after a leading dimension.

    Attributes:
        query, key: [..., tokens, key_dim], of length one, queries scaled.
        value: [..., tokens, value_dim].
        g: [..., tokens], the logarithm of alpha.
        beta: [..., tokens].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    g: Tensor
    beta: Tensor

    def of(self, tokens: slice) -> Tokens:
        """Some of the tokens, where heads come first."""
        return Tokens(*(each[:, tokens] for each in self))


def delta_rule(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    *,
    slots: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> Tensor:
    """Compute ragged tokens of B rows and write their rows' states.

    Args:
        projected: [T, width], one row's tokens after the other.
        states: written in place, in the rows' slots alone.
        weights: of the layer.
        heads: its dimensions.
        slots: int64 [B], distinct.
        starts: B numbers, the position of each row's first token here; a row that starts at 0 has no state.
        lengths: B numbers, how many of the tokens are each row's; they sum to T.

    Returns:
        [T, inner] in the dtype of `projected`.
    """
    mixed = _convolve(projected, states, weights, heads, slots=slots, starts=starts, lengths=lengths)
    tokens = _prepare(mixed, projected, weights, heads)
    results = torch.empty_like(tokens.value)
    firsts = [sum(lengths[:row]) for row in range(len(lengths))]
    single = [row for row, length in enumerate(lengths) if length == 1]
    if single:
        places = torch.tensor([firsts[row] for row in single])
        index = slots[torch.tensor(single)]
        begun = torch.tensor([starts[row] > 0 for row in single])
        before = torch.where(begun[:, None, None, None], states.sums[index], 0.0)
        results[:, places], states.sums[index] = _advance(
            Tokens(*(each[:, places] for each in tokens)), before
        )
    for row, (first, start, length) in enumerate(zip(firsts, starts, lengths, strict=True)):
        if length > 1:
            slot = int(slots[row])
            state = states.sums[slot].clone() if start else torch.zeros_like(states.sums[slot])
            at = 0
            while at < length:
                end = min(length, at + TILE - (start + at) % TILE)
                tile = slice(first + at, first + end)
                results[:, tile], state = _advance_tile(tokens.of(tile), state)
                at = end
            states.sums[slot] = state
    return _finish(results, projected, weights, heads)


def invariant_delta_rule(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    *,
    slots: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> Tensor:
    """As `delta_rule`, with bits that depend on nothing but a row's own tokens: each is computed alone, in tensors of the same shapes."""
    tokens = iter(torch.split(projected, 1))
    results = [
        delta_rule(next(tokens), states, weights, heads, slots=slot, starts=(position,), lengths=(1,))
        for slot, start, length in zip(torch.split(slots, 1), starts, lengths, strict=True)
        for position in range(start, start + length)
    ]
    return torch.cat(results)


def _convolve(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    *,
    slots: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> Tensor:
    """The short convolution and its SiLU, float32 [T, channels]; the newest inputs of each row are kept."""
    taps = heads.taps
    x = projected[:, : heads.channels].float()
    weight = weights.convolution.float().T
    counts = torch.tensor(lengths)
    firsts = counts.cumsum(0) - counts
    offsets = torch.arange(len(x)) - firsts.repeat_interleave(counts)
    positions = torch.tensor(starts).repeat_interleave(counts) + offsets
    owners = slots.repeat_interleave(counts)
    total = x * weight[-1]
    for back in range(1, taps):
        earlier = F.pad(x, (0, 0, back, 0))[: len(x)]
        (outside,) = (offsets < back).nonzero(as_tuple=True)
        at = positions[outside] - back
        kept = states.recent[owners[outside], at % taps]
        earlier[outside] = torch.where((at >= 0)[:, None], kept, 0.0)
        total = total + earlier * weight[-1 - back]
    newest = offsets + taps >= counts.repeat_interleave(counts)
    states.recent[owners[newest], positions[newest] % taps] = x[newest]
    return F.silu(total)


def _prepare(mixed: Tensor, projected: Tensor, weights: DeltaWeights, heads: DeltaHeads) -> Tokens:
    """Heads of unit length, g and beta of T tokens, value heads first."""
    keys, num_tokens = heads.num_key_heads * heads.key_dim, len(mixed)
    query, key, value = torch.split(mixed, [keys, keys, heads.inner], dim=1)
    group = heads.num_value_heads // heads.num_key_heads

    def unit(x: Tensor) -> Tensor:
        x = x.reshape(num_tokens, -1, heads.key_dim)
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
        return x.repeat_interleave(group, 1).transpose(0, 1)

    b, a = projected[:, heads.channels + heads.inner :].float().T.chunk(2)
    return Tokens(
        query=unit(query) * heads.key_dim**-0.5,
        key=unit(key),
        value=value.reshape(num_tokens, -1, heads.value_dim).transpose(0, 1),
        g=-weights.decay_log.exp()[:, None] * F.softplus(a + weights.decay_bias[:, None]),
        beta=b.sigmoid(),
    )


def _finish(results: Tensor, projected: Tensor, weights: DeltaWeights, heads: DeltaHeads) -> Tensor:
    """Norm, weight and gate the results [num_value_heads, T, value_dim]; [T, inner] in the dtype of `projected`."""
    gate = projected[:, heads.channels : heads.channels + heads.inner].float()
    normed = F.rms_norm(results.transpose(0, 1), (heads.value_dim,), weights.norm.float(), weights.eps)
    return (normed.flatten(1) * F.silu(gate)).to(projected.dtype)


def _advance(tokens: Tokens, states: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each of B states [B, heads, key_dim, value_dim]: results [heads, B, value_dim], and the states after."""
    q, k, v = (each.transpose(0, 1)[:, :, None] for each in tokens[:3])
    g, beta = (each.T[:, :, None, None] for each in tokens[3:])
    states = states * g.exp()
    states = states + k.transpose(2, 3) * (beta * (v - k @ states))
    return (q @ states)[:, :, 0].transpose(0, 1), states


def _advance_tile(tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor]:
    """Up to 64 tokens of one row: results [heads, tokens, value_dim], and the state after [heads, key_dim, value_dim].

    The u of all tokens follow from one triangular system, see `triton_tiles`.
    """
    q, k, v, g, beta = tokens
    g = g.cumsum(1)  # since the beginning of the tile
    decay, beta = g.exp()[:, :, None], beta[:, :, None]
    future = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool).triu(1)
    between = (g[:, :, None] - g[:, None, :]).masked_fill(future, -torch.inf).exp()
    system = (k * beta) @ k.transpose(1, 2) * between
    sides = torch.cat((v * beta, k * beta * decay), dim=2)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    u = solved[:, :, : v.shape[2]] - solved[:, :, v.shape[2] :] @ state
    results = (q * decay) @ state + (q @ k.transpose(1, 2) * between) @ u
    remaining = (g[:, -1:] - g).exp()[:, :, None]
    return results, state * decay[:, -1:] + (k * remaining).transpose(1, 2) @ u
