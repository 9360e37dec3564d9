"""Attention of one newest token per row over its paged KV cache, with everything around it in the same kernel.

Per place of the batch: an optional RMS norm of each query and key head, rope, the write of the new key and value into
the cache (Kwon et al. 2023), and grouped-query attention, the heads that share a KV head packed into one matrix product
and long rows split over several programs (flash-decoding, Dao et al. 2023).
"""
