"""Deltas that low-rank adapters add to a product: out[t] += B[s] A[s, part] x[t], where s is the slot of token t (Hu et al. 2021; Chen et al. 2023).

A slot holds the factors of all products of an adapter of rank r, one behind the other: of this one A [parts, r, K] and B [N, r], the
scale in B. Each column of the product reads one part of A: q, k and v are columns of one product, and have an A each. Ranks are
multiples of 16. Tokens come in groups of one slot each; a token in no group has no adapter.
"""
