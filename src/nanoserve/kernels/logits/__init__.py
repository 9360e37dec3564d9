"""Rows of logits on a GPU: penalties on tokens that have occurred, and log-probabilities; nothing is looked up on the host.

For a token that occurred `n` times in the output, of a row with strengths (repetition, frequency, presence):

1. if it is in the prompt or `n > 0`, its logit is divided by the repetition penalty if positive, else multiplied by it
   (CTRL, Keskar et al. 2019);
2. `frequency * n`, and `presence` if `n > 0`, are subtracted.

A token's log-probability is `logit - log(sum of exp(all logits))`; its rank is one more than the number of strictly larger logits.
"""
