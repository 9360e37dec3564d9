"""A step on a CPU: what every layer needs to know of it, computed once, and attention over the paged cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.step_inputs import GroupInputs, StepInputs
from nanoserve.kernels.delta_rule import delta_rule, invariant_delta_rule
from nanoserve.kernels.latent_attention import (
    fixed_head_linear,
    head_linear,
    invariant_latent_attention,
    latent_attention,
    plan_invariant,
    plan_latent_attention,
)
from nanoserve.kernels.paged_attention import (
    invariant_attention,
    paged_attention,
    plan_attention,
    plan_invariant_attention,
)
from nanoserve.kernels.pointwise import invariant_sigmoid_mul, norm_qkv, sigmoid_mul
from nanoserve.kernels.recurrent import DeltaStates
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import AttentionSpec, LatentSpec, Rotation
from nanoserve.ports.model_spec import CacheGroup, ModelSpec, Recurrent


@attrs.frozen(eq=False)
class GroupState:
    """The layers of one cache group: where tokens are written, how queries attend, how heads are multiplied by weights, and results by gates."""

    blocks: Tensor
    offsets: Tensor
    attend: Callable[..., Tensor]
    by_head: Callable[[Tensor, Tensor], Tensor] = head_linear
    gate: Callable[[Tensor, Tensor], Tensor] = sigmoid_mul


@attrs.frozen(eq=False)
class RowStates:
    """The layers of one recurrent group: how their rule is computed over the rows' slots."""

    rule: Callable[..., Tensor]


@attrs.frozen(eq=False)
class StepState:
    """One step on a CPU: its rotations (cosines and sines, see `kernels.rope_and_cache.rotation`), each layer's cache group, and the cache."""

    rotations: Mapping[Rotation, tuple[Tensor, Tensor]]
    by_layer: tuple[GroupState | RowStates, ...]
    kv: KVStore

    def attend(self, attention: Attention, projected: Tensor, /) -> Tensor:
        """See `mixers.attention.part.Attends`."""
        group = self.by_layer[attention.layer]
        assert isinstance(group, GroupState)
        keys, values = self.kv.layers[attention.layer]
        qkv, gate = attention.split(projected)
        if (vectors := attention.vectors) is not None:
            qkv = norm_qkv(qkv, **vectors)
        heads = qkv.view(qkv.shape[0], -1, attention.head_dim)
        qk, value = heads[:, : -attention.num_kv_heads], heads[:, -attention.num_kv_heads :]
        query, key = self._rotated(attention, qk)
        keys.transpose(1, 2).index_put_((group.blocks, group.offsets), key)
        values.transpose(1, 2).index_put_((group.blocks, group.offsets), value)
        attended = group.attend(query, keys, values, **attention.scoring).flatten(1)
        return group.gate(attended, gate) if attention.is_gated else attended

    def recur(self, net: DeltaNet, projected: Tensor, /) -> Tensor:
        """See `mixers.delta.part.Recurs`."""
        rows = self.by_layer[net.layer]
        assert isinstance(rows, RowStates)
        return rows.rule(projected, DeltaStates(*self.kv.layers[net.layer]), net.weights, net.heads)

    def attend_to_latents(self, mixer: LatentAttention, queries: Tensor, projected: Tensor, /) -> Tensor:
        """See `mixers.latent.part.AttendsToLatents`."""
        group, turns = self.by_layer[mixer.layer], self.rotations[mixer.rotation]
        assert isinstance(group, GroupState)
        (entries,), latent_dim = self.kv.layers[mixer.layer], mixer.latent_dim
        key = apply_rotation(projected[:, None, latent_dim:], *turns)[:, 0]
        latent = mixer.latent_norm(projected[:, :latent_dim])
        entries.index_put_((group.blocks, group.offsets), torch.cat((latent, key), dim=1))
        heads = queries.view(len(queries), mixer.num_heads, -1)
        absorbed = group.by_head(heads[..., : mixer.nope_dim], mixer.up_keys)
        query = torch.cat((absorbed, apply_rotation(heads[..., mixer.nope_dim :], *turns)), dim=2)
        attended = group.attend(query, entries, latent_dim=latent_dim, scale=mixer.scale)
        return group.by_head(attended, mixer.up_values).flatten(1)

    def _rotated(self, attention: Attention, qk: Tensor) -> tuple[Tensor, Tensor]:
        num_heads = attention.num_heads
        if attention.q_norm is not None and attention.k_norm is not None and not attention.norms_vectors:
            qk = torch.cat((attention.q_norm(qk[:, :num_heads]), attention.k_norm(qk[:, num_heads:])), dim=1)
        qk = apply_rotation(qk, *self.rotations[attention.rotation])
        return qk[:, :num_heads], qk[:, num_heads:]


def prepare_step(
    spec: ModelSpec, rotaries: Mapping[Rotation, Rotary], inputs: StepInputs, kv: KVStore, *, invariant: bool
) -> StepState:
    """Compute what the layers share; `invariant` attention gives each query the same bits in any company."""
    by_layer: dict[int, GroupState | RowStates] = {}
    for group, group_inputs in zip(spec.cache_groups, inputs.groups, strict=True):
        if isinstance(group.kind, Recurrent):
            state: GroupState | RowStates = _row_states(group_inputs, inputs, invariant=invariant)
        else:
            state = _group_state(spec, group, group_inputs, inputs, kv, invariant=invariant)
        by_layer.update(dict.fromkeys(group.layers, state))
    rotations = {rotation: rotary(inputs.positions) for rotation, rotary in rotaries.items()}
    return StepState(rotations, tuple(by_layer[layer] for layer in range(spec.num_layers)), kv)


def _row_states(group: GroupInputs, inputs: StepInputs, *, invariant: bool) -> RowStates:
    lengths = inputs.query_lengths
    starts = tuple(context - length for context, length in zip(inputs.context_lengths, lengths, strict=True))
    rule = invariant_delta_rule if invariant else delta_rule
    slots = group.block_tables[:, 0]
    return RowStates(functools.partial(rule, slots=slots, starts=starts, lengths=lengths))


def _group_state(
    spec: ModelSpec,
    group: CacheGroup,
    group_inputs: GroupInputs,
    inputs: StepInputs,
    kv: KVStore,
    *,
    invariant: bool,
) -> GroupState:
    mixer = spec.layers[group.layers[0]].mixer
    rows = (group_inputs.block_tables, inputs.query_lengths, inputs.context_lengths)
    attend: Callable[..., Tensor]
    if isinstance(mixer, LatentSpec) and invariant:
        attend = functools.partial(invariant_latent_attention, plan=plan_invariant(*rows))
    elif isinstance(mixer, LatentSpec):
        latent_plan = plan_latent_attention(*rows, block_size=kv.block_size)
        attend = functools.partial(latent_attention, plan=latent_plan)
    elif invariant:
        attend = functools.partial(
            invariant_attention, plan=plan_invariant_attention(*rows, window=group.window)
        )
    else:
        assert isinstance(mixer, AttentionSpec)
        keys = kv.layers[group.layers[0]][0]
        plan = plan_attention(
            *rows,
            num_kv_heads=mixer.num_kv_heads,
            block_size=kv.block_size,
            block_stride=keys.stride(0) // keys.stride(1),
            window=group.window,
            dtype=keys.dtype,
        )
        attend = functools.partial(paged_attention, plan=plan)
    slots = group_inputs.slot_mapping
    return GroupState(
        blocks=torch.div(slots, kv.block_size, rounding_mode="floor"),
        offsets=slots % kv.block_size,
        attend=attend,
        by_head=fixed_head_linear if invariant else head_linear,
        gate=invariant_sigmoid_mul if invariant else sigmoid_mul,
    )
