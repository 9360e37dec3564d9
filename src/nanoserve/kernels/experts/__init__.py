"""A mixture of experts (Shazeer et al. 2017): each token's feed is the weighted sum of a few of many small ones.

| function       | what it does                                                                                          |
|----------------|-------------------------------------------------------------------------------------------------------|
| choose         | logits to each token's experts and weights; of equal scores the lower index wins                        |
| feed           | the weighted sum on a CPU, an expert at a time; `invariant_feed` with bits that depend on the token alone |
| choose_experts | the choice on a GPU                                                                                   |
| feed_rows      | one token on a GPU, which reads its experts by itself; adds to the residual stream                         |
| feed_lists     | more of them: tokens are sorted by expert; leaves partial sums, which `rms_norm`'s `add_rms_norm_into` adds up |

Those of a GPU write into tensors that the caller has allocated, wait for nothing, and may be captured into a CUDA graph:
nothing that is launched depends on what is chosen. Sums are float32 and of a fixed order. Experts that every token passes
through are ordinary ones behind those that are chosen, in slots behind the chosen ones.
"""

from nanoserve.kernels.experts.cpu import choose, feed, invariant_feed
from nanoserve.kernels.experts.reference import Chosen, Experts, Routing

__all__ = ["Chosen", "Experts", "Routing", "choose", "feed", "invariant_feed"]
