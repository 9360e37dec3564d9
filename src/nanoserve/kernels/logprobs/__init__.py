"""The log-probability and the rank of one token per row of logits, on a GPU.

`logprob = logit - log(sum of exp(all logits))`; the rank is one more than the number of strictly larger logits.
`reference.py` is that as torch; `launch.py` serves on a GPU.
"""
