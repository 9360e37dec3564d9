"""Multi-head latent attention (DeepSeek-AI 2024), causal, of ragged queries over a paged cache.

Absorbed, queries come with the key projection in them, all heads read one entry per token, and what leaves is still latent; the
products around it, a linear layer for each head, are `head_linear`. Expanded, for prompts, every head makes keys and values of the
latents: a query and a token cost 192 + 128 elements of arithmetic in DeepSeek's models, where the absorbed form costs 576 + 512. The
products that expand are the vendor's: here entries are gathered from the cache, in spans of bounded size, and attended to.
"""

from nanoserve.kernels.latent_attention.cpu import (
    attend_to_part,
    fixed_head_linear,
    head_linear,
    invariant_latent_attention,
    latent_attention,
    merge_parts,
    plan_invariant,
    plan_latent_attention,
)

__all__ = [
    "attend_to_part",
    "fixed_head_linear",
    "head_linear",
    "invariant_latent_attention",
    "latent_attention",
    "merge_parts",
    "plan_invariant",
    "plan_latent_attention",
]
