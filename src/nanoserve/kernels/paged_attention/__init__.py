"""Causal attention of ragged queries over a paged KV cache (Kwon et al. 2023), grouped-query heads included.

A plan, made once per step and cache group from the rows' tables and lengths, holds what all layers share; each
layer then passes its own queries and cache.
"""

from nanoserve.kernels.paged_attention.cpu import paged_attention, plan_attention
from nanoserve.kernels.paged_attention.invariant import invariant_attention, plan_invariant_attention

__all__ = ["invariant_attention", "paged_attention", "plan_attention", "plan_invariant_attention"]
