"""RMS norms over the whole query and key vectors of a token, all heads together (OLMo, MiniMax), and a bound for all three.

What comes after it, rotation and attention, works on each head alone.
"""

from nanoserve.kernels.qkv_norm.cpu import norm_qkv

__all__ = ["norm_qkv"]
