"""Multi-head latent attention in its absorbed form (DeepSeek-AI 2024), causal, of ragged queries over a paged cache.

Queries come with the key projection absorbed, all heads read one entry per token, and what leaves is still latent: the
products around it are `head_linear`, the writing of entries is `latent_cache`.
"""

from nanoserve.kernels.latent_attention.cpu import latent_attention, plan_latent_attention
from nanoserve.kernels.latent_attention.invariant import invariant_latent_attention, plan_invariant

__all__ = ["invariant_latent_attention", "latent_attention", "plan_invariant", "plan_latent_attention"]
