"""Head norm, rotary embedding and the write into the paged KV cache, between the QKV product and attention.

One pass over the projections of a step's tokens: RMSNorm of each query and key head (as Qwen 3 has), rotation in the
rotate-half layout (Su et al. 2021), queries to their own tensor, keys and values to their slots.
"""
