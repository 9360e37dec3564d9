"""Self-attention over the paged cache: project, attend, project back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nanoserve.adapters.pytorch.layers.part import LinearOps, Step
from nanoserve.adapters.pytorch.mixers.attention.weights import AttentionWeights
from nanoserve.kernels.heads import Scoring


class Attention(AttentionWeights):
    """Grouped-query attention (Ainslie et al. 2023); q, k, v and a gate (Qiu et al. 2025) are one matrix, its rows in that order.

    A step mixes [T, (num_heads + 2 num_kv_heads) head_dim] projections, or num_heads head_dim more where there is a gate, to
    attended values [T, num_heads head_dim]: it norms and rotates q and k, keeps keys and values, and applies the gate's sigmoid.
    """

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Projections [T, ...] as those to q, k and v, and those to the gate, which may have no columns."""
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return projected[:, :width], projected[:, width:]

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """Stream + output(attend(qkv(norm(stream))))."""
        attended = step.mix(self, ops.project_in(self.norm, self.qkv))
        ops.project_out(attended, self.output, self.post_norm)

    @property
    def vectors(self) -> dict[str, Any] | None:
        """The transformation of a token's whole q, k and v before kernels see heads, by the names of `norm_qkv`'s arguments."""
        if not self.norms_vectors and self.clip is None:
            return None
        norms = (self.q_norm, self.k_norm) if self.norms_vectors else (None, None)
        q_norm, k_norm = (None if norm is None else norm.weight for norm in norms)
        sizes = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        eps = 0.0 if self.q_norm is None else self.q_norm.eps
        return {"q_norm": q_norm, "k_norm": k_norm, "eps": eps, "clip": self.clip, "sizes": sizes}

    @property
    def scoring(self) -> Scoring:
        """How attention kernels make weights of products of queries and keys."""
        return Scoring(self.scale, self.soft_cap, self.sinks)
