"""The gated delta rule token by token, as its formula, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights

L2_EPS = 1e-6


def delta_rule(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    *,
    slots: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
) -> tuple[Tensor, DeltaStates, Tensor]:
    """The result [T, inner] of rows of tokens, float32, and the states after them; the arguments are those of `cpu.delta_rule`.

    And, in the result's shape, how much of it does not cancel: what a query reads, relative to what it would read of a state of
    independent numbers, 1 at most. The norm of the result multiplies all errors before it by the inverse.
    """
    after = DeltaStates(states.sums.clone(), states.recent.clone())
    results, shares, first = [], [], 0
    for slot, start, length in zip(slots, starts, lengths, strict=True):
        state = states.sums[slot].double() if start else torch.zeros_like(states.sums[slot]).double()
        past = [
            states.recent[slot, position % heads.taps].double()
            if position >= 0
            else torch.zeros_like(states.recent[slot, 0]).double()
            for position in range(start - heads.taps + 1, start)
        ]
        for position, token in enumerate(projected[first : first + length].double(), start):
            past.append(token[: heads.channels])
            result, share, state = _step(torch.stack(past[-heads.taps :]), token, state, weights, heads)
            after.recent[slot, position % heads.taps] = token[: heads.channels].float()
            results.append(result)
            shares.append(share)
        after.sums[slot] = state.float()
        first += length
    return torch.stack(results).float(), after, torch.stack(shares).float()


def _step(
    window: Tensor, token: Tensor, state: Tensor, weights: DeltaWeights, heads: DeltaHeads
) -> tuple[Tensor, Tensor, Tensor]:
    """One token's result [inner], its share that does not cancel, and the state after it."""
    mixed = F.silu((window * weights.convolution.double().T).sum(0))
    keys = heads.num_key_heads * heads.key_dim
    query, key, value = torch.split(mixed, [keys, keys, heads.inner])
    sizes = [heads.inner, heads.num_value_heads, heads.num_value_heads]
    gate, b, a = torch.split(token[heads.channels :], sizes)
    group = heads.num_value_heads // heads.num_key_heads
    query, key = (each.view(-1, heads.key_dim).repeat_interleave(group, 0) for each in (query, key))
    query, key = (each * (each.square().sum(-1, keepdim=True) + L2_EPS).rsqrt() for each in (query, key))
    g = -weights.decay_log.double().exp() * F.softplus(a + weights.decay_bias.double())
    state = state * g.exp()[:, None, None]
    u = value.view(-1, heads.value_dim) - torch.einsum("hkv,hk->hv", state, key)
    state = state + key[:, :, None] * (b.sigmoid()[:, None] * u)[:, None, :]
    query = query * heads.key_dim**-0.5
    result = torch.einsum("hkv,hk->hv", state, query)
    size = (result.square().mean(-1, keepdim=True) + weights.eps).sqrt()
    usual = query.norm(dim=-1) * state.norm(dim=(1, 2)) / math.sqrt(heads.key_dim * heads.value_dim)
    share = (size / usual[:, None]).clamp(max=1).expand_as(result)
    result = result / size * weights.norm.double() * F.silu(gate.view(-1, heads.value_dim))
    return result.flatten(), share.flatten(), state
