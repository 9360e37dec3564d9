"""Deltas that low-rank adapters add to a product: out[t] += B[s] A[s, part] x[t], where s is the slot of token t (Hu et al. 2021; Chen et al. 2023).

A slot holds the factors of all products of an adapter of rank r, one behind the other: of this one A [parts, r, K] and B [N, r], the
scale in B. Each column of the product reads one part of A: q, k and v are columns of one product, and have an A each. Ranks are
16, 32, 64 or 128. A *unit* is a slot and the tokens that have it; a token in no unit has no adapter.

`shrink` makes A x of all units, and `expand_kernel` multiplies it with B: beside a product of up to 64 tokens, which begins with both and adds
what that leaves to its sums before it stores them, and behind products of the vendor's library. One token's product multiplies with B itself.
"""
