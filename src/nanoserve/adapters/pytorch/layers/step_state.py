"""What every layer needs to know of a step, computed once before the first layer."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.step_inputs import GroupInputs, StepInputs
from nanoserve.kernels.paged_attention import AttentionPlan, plan_attention
from nanoserve.ports.model_spec import CacheGroup, ModelSpec


@attrs.frozen(eq=False)
class GroupState:
    """The layers of one cache group: where tokens are written, and what each query reads."""

    blocks: Tensor
    offsets: Tensor
    plan: AttentionPlan


@attrs.frozen(eq=False)
class StepState:
    """One step: its rotations (see `kernels.rope.rotation`), each layer's cache group, and the cache itself."""

    cos: Tensor
    sin: Tensor
    by_layer: tuple[GroupState, ...]
    kv: KVStore


def prepare_step(spec: ModelSpec, rotary: Rotary, inputs: StepInputs, kv: KVStore) -> StepState:
    """Compute what the layers share."""
    cos, sin = rotary(inputs.positions)
    by_layer: dict[int, GroupState] = {}
    for group, group_inputs in zip(spec.cache_groups, inputs.groups, strict=True):
        state = _group_state(spec, group, group_inputs, inputs, kv)
        by_layer.update(dict.fromkeys(group.layers, state))
    return StepState(cos, sin, tuple(by_layer[layer] for layer in range(spec.num_layers)), kv)


def _group_state(
    spec: ModelSpec, group: CacheGroup, group_inputs: GroupInputs, inputs: StepInputs, kv: KVStore
) -> GroupState:
    slots = group_inputs.slot_mapping
    return GroupState(
        blocks=torch.div(slots, kv.block_size, rounding_mode="floor"),
        offsets=slots % kv.block_size,
        plan=plan_attention(
            group_inputs.block_tables,
            inputs.query_lengths,
            inputs.context_lengths,
            num_kv_heads=spec.num_kv_heads,
            block_size=kv.block_size,
            window=group.window,
            dtype=kv.keys[0].dtype,
        ),
    )
