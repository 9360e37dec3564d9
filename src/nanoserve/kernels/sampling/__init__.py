"""Draw one token per row: filters as one cutoff, then Gumbel-max with counter-based noise.

The rule, for a row of float32 logits `l` with largest value `m`, temperature T > 0:

1. `x = (l - m) / T`, so that the likeliest token has 0 and `exp(x)` is its weight relative to that.
2. Three filters, in this order, each on what the one before has kept:
   min-p keeps what is at least that fraction as likely as the likeliest; top-k keeps the k largest; top-p keeps a
   token if the total weight of the tokens strictly likelier than it is below `top_p` times the weight of all that
   are left, which keeps the token that crosses p. Equal logits share one fate: a tie with the last token kept is
   kept. So the filters amount to one cutoff per row, and no sort order can change the outcome.
3. The token is `argmax(x + g)` over what is kept (Gumbel-max), the lowest id on a tie, where g is the Gumbel noise
   of (seed, position, token id): `kernels/philox.py` says how. It depends on nothing else: not on the row, not
   on the other rows, not on what was drawn before.

A row whose largest logit is not finite (NaN, +inf, or nothing but -inf) yields the id of that logit, so that looking
at the logit of the drawn token finds every row that cannot be trusted.

`reference.py` is that rule computed naively; `cpu.py` computes the same without sorting and without noise for tokens
that cannot win; `launch.py` computes it on a GPU inside a CUDA graph, with contracts of its own. Shapes everywhere else:
logits [n, vocab] float32; temperatures and fractions [n] float32; top_k, seeds, positions [n] int64. top_k >= 1 (vocab
keeps all), fractions lie between 0 and 1, top_p above 0; seeds are the 64 bits of the seed read as a signed number.
"""

from nanoserve.kernels.sampling.cpu import argmax, draw, processed

__all__ = ["argmax", "draw", "processed"]
