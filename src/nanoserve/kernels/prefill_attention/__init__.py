"""Causal attention of prefill chunks over the paged KV cache: ragged, with cached prefixes, windows, grouped heads.

The method is FlashAttention-2 (Dao 2023) with keys and values gathered through block tables (Kwon et al. 2023). The
work is cut into tiles, each of some consecutive queries of one row; one program attends with the queries of a tile
in a few heads that share a KV head. What a query gets depends on the keys and values it sees and on `BlockSizes` alone,
bit for bit: not on its tile, the chunk, or the step's other rows. So the same kernel serves decoding rows where
outputs must not depend on the batch (`prefill_attention_newest`).
"""
