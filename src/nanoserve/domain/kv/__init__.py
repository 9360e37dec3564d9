"""The KV cache as bookkeeping: blocks, reference counts, prefix hashes, and a table per sequence and cache group."""
