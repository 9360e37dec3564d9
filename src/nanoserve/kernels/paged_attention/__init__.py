"""Causal attention of ragged queries over a paged cache of keys and values (Kwon et al. 2023).

| function         | what it is for                                                                                       |
|------------------|------------------------------------------------------------------------------------------------------|
| paged_attention  | any queries on a CPU; `invariant_attention` with bits that depend on the query and what it sees alone, `kernels.kept_rows` for rows that decode step after step |
| decode_attention | one newest token per row on a GPU, with everything around it in the same kernel: an RMS norm of each query and key head, rope, the write of the new key and value, and attention, the heads that share a KV head in one matrix product and long rows split over several programs (flash-decoding, Dao et al. 2023) |
| prefill_attention | chunks of prompts on a GPU: FlashAttention-2 (Dao 2023) with keys and values gathered through block tables |

The work of `prefill_attention` is cut into tiles, each of some consecutive queries of one row; one program attends with the queries of
a tile in a few heads that share a KV head. What a query gets depends on the keys and values it sees and on `BlockSizes` alone, bit for
bit: not on its tile, the chunk, or the step's other rows. So the same kernel serves decoding rows where outputs must not depend on the
batch.
"""

from nanoserve.kernels.heads import Scoring
from nanoserve.kernels.invariant_attention import invariant_attention, plan_invariant_attention
from nanoserve.kernels.paged_attention.cpu import BlockLayout, paged_attention, plan_attention

__all__ = [
    "BlockLayout",
    "Scoring",
    "invariant_attention",
    "paged_attention",
    "plan_attention",
    "plan_invariant_attention",
]
