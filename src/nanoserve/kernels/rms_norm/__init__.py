"""Root-mean-square layer norms (Zhang and Sennrich 2019) of the residual stream, with the addition before it, and of queries and keys.

Those of whole query and key vectors, all heads of a token together (OLMo, MiniMax), come with a bound for these and the values.
"""

from nanoserve.kernels.rms_norm.cpu import norm_qkv, rms_norm

__all__ = ["norm_qkv", "rms_norm"]
