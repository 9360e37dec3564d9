"""What one step computes, as tensors: the ragged tokens of all rows and where their keys and values live."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class GroupInputs:
    """Where the rows' keys and values live in the layers of one cache group.

    Attributes:
        block_tables: int64 [B, max_blocks]: the block of each `block_size` tokens of each row. Entries that are
            unused, or whose tokens left the group's window, are `SINK_BLOCK`.
        slot_mapping: int64 [T]: `block * block_size + offset` where each token's key and value are written.
    """

    block_tables: Tensor
    slot_mapping: Tensor


@attrs.frozen(kw_only=True, eq=False)
class StepInputs:
    """One step's B rows with T tokens in all, one row's tokens after the other, without padding.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T]: each token's position in its own sequence.
        query_lengths: B numbers: how many of the T tokens belong to each row; they sum to T.
        context_lengths: B numbers: how many tokens the row's last token sees, itself included, window aside.
        logits_indices: int64 [S]: which of the T tokens need logits.
        groups: one entry per cache group, in the order of `ModelSpec.cache_groups`.
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    logits_indices: Tensor
    groups: tuple[GroupInputs, ...]

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], *, block_size: int, num_groups: int) -> StepInputs:
        """A prompt computed whole, alone, in blocks 1, 2, ... of every cache group; every token gets logits."""
        length = len(token_ids)
        positions = torch.arange(length)
        blocks = torch.arange(1, -(-length // block_size) + 1)
        return cls(
            token_ids=torch.tensor(token_ids),
            positions=positions,
            query_lengths=(length,),
            context_lengths=(length,),
            logits_indices=positions,
            groups=(GroupInputs(block_tables=blocks[None], slot_mapping=positions + block_size),)
            * num_groups,
        )
