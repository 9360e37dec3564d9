"""The feed that is a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import Storable, prefixed, rows
from nanoserve.adapters.pytorch.layers.feeds import USUAL, SwiGLU
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part
from nanoserve.adapters.pytorch.layers.product import Mixture, Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.linear.plain import in_form
from nanoserve.kernels.experts import Experts as Stack
from nanoserve.kernels.experts import Routing
from nanoserve.kernels.forms import Form
from nanoserve.kernels.forms.fp8 import BLOCK
from nanoserve.ports.layer_spec import ExpertsSpec
from nanoserve.ports.model_spec import ModelSpec

NAMES: Final = {
    "proj": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "w": ("block_sparse_moe", "w1", "w3", "w2"),
}
"""By `ExpertsSpec.names`, checkpoints' names of a mixture and of the three matrices of an expert."""


class Experts(Part):
    """Each token passes through a few of many SwiGLUs (Shazeer et al.

    2017); all of one layer are one stack. A shared expert is split into experts of the common size, after the others: a SwiGLU is
    the sum of the SwiGLUs of parts of its rows.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, USUAL)
        feed, hidden = spec.layers[layer].feed, spec.hidden_size
        assert isinstance(feed, ExpertsSpec)
        self.spec = feed
        self.routing = _routing(feed)
        self.held = range(feed.count) if feed.held is None else feed.held
        count = len(self.held) + self.routing.shared
        self.router = Linear(hidden, feed.count + feed.shared_gate, bias=feed.router.bias)
        self.correction = _parameter(feed.count, dtype=torch.float32) if feed.router.correction else None
        self.gate_up = _parameter(count, 2 * feed.size, hidden)
        self.down = _parameter(count, hidden, feed.size)
        self.gate_up_scales: nn.Parameter | None = None
        self.down_scales: nn.Parameter | None = None
        self.gate_up_form: Form | None = None
        self.down_form: Form | None = None
        self.gate_up_bias = _parameter(count, 2 * feed.size) if feed.bias else None
        self.down_bias = _parameter(count, hidden) if feed.bias else None
        # As checkpoints hold it, until `arrange` has cut it up.
        self.shared_gate_up: Linear | None = None
        self.shared_down: Linear | None = None
        if feed.shared_size:
            self.shared_gate_up = Linear(hidden, 2 * feed.shared_size)
            self.shared_down = Linear(feed.shared_size, hidden)
        self.counts: Tensor | None = None
        self.records: list[Tensor] = []  # one at the most, and no weight

    def run(self, ops: LinearOps, _: object, /) -> None:
        """Stream + the weighted sum of the outputs of each token's experts for norm(stream)."""
        assert isinstance(self.norm, RMSNorm)
        ops.experts(self.norm, self.mixture())

    def products(self) -> tuple[Product, ...]:
        return (Product("router", self.router, self.norm),)

    def mixture(self) -> Mixture:
        gate_up = in_form(self.gate_up_form, self.gate_up, self.gate_up_scales)
        down = in_form(self.down_form, self.down, self.down_scales)
        others = self.spec.count - len(self.held)
        stack = Stack(gate_up, down, self.gate_up_bias, self.down_bias, self.spec.clamp, others)
        return Mixture(
            router=self.router,
            routing=self.routing,
            correction=self.correction,
            counts=self.counts,
            record=self.records[0] if self.records else None,
            experts=stack,
            exact=self.spec.router.exact,
        )

    def storable(self) -> Iterable[Storable]:
        """All experts, or none; a shared one is cut at multiples of their size, which may not cut through blocks of scales."""
        found: list[tuple[nn.Module, str]] = [(self, "gate_up"), (self, "down")]
        if self.shared_gate_up is not None and self.shared_down is not None:
            found += [(self.shared_gate_up, "weight"), (self.shared_down, "weight")]
            return [] if self.spec.size % BLOCK else [found]
        return [found]

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Per expert, as Qwen, DeepSeek and their relatives name them, or as Mixtral and MiniMax do."""
        feed, size, (block, gate, up, down) = self.spec, self.spec.size, NAMES[self.spec.names]
        tensors = rows(
            self.router, {"gate": feed.count} | ({"shared_expert_gate": 1} if feed.shared_gate else {})
        )
        if self.correction is not None:
            name = "gate.e_score_correction_bias" if feed.names == "proj" else "e_score_correction_bias"
            tensors[name] = self.correction
        for place, expert in enumerate(self.held):
            gate_up = self.gate_up[place]
            parts = {gate: gate_up[:size], up: gate_up[size:], down: self.down[place]}
            tensors |= {f"experts.{expert}.{name}.weight": tensor for name, tensor in parts.items()}
        if self.shared_gate_up is not None and self.shared_down is not None:
            shared = rows(self.shared_gate_up, dict.fromkeys((gate, up), feed.shared_size))
            shared |= prefixed(down, self.shared_down.checkpoint_tensors())
            tensors |= prefixed("shared_expert" if feed.shared_gate else "shared_experts", shared)
        return self.norm_tensors() | prefixed(block, tensors)

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        """The form of transformers, in which it also writes checkpoints."""
        count, (block, gate, up, down) = len(self.held), NAMES[self.spec.names]

        def of_each(*names: str) -> list[str]:
            return [f"{block}.experts.{expert}.{name}.weight" for expert in self.held for name in names]

        stacks: dict[str, tuple[Tensor, Sequence[str]]] = {
            "mlp.experts.gate_up_proj": (self.gate_up[:count], of_each(gate, up)),
            "mlp.experts.down_proj": (self.down[:count], of_each(down)),
            "mlp.gate.weight": (self.router.weight[: self.spec.count], [f"{block}.gate.weight"]),
        }
        if self.correction is not None and block != "mlp":
            stacks["mlp.e_score_correction_bias"] = self.correction, [f"{block}.e_score_correction_bias"]
        return stacks

    def sections(self) -> dict[str, tuple[int, ...]]:
        return self.halves("mlp.experts.gate_up_proj")

    def halves(self, *names: str) -> dict[str, tuple[int, ...]]:
        """The gates and the up projections of such stacks; whole experts are not divided further."""
        return dict.fromkeys(names, (self.spec.size, self.spec.size)) if self.spec.held is None else {}

    def arrange(self) -> None:
        """Cut the shared expert up, and let a CPU compute exact logits in float32."""
        if self.spec.router.exact and self.router.weight.device.type == "cpu":
            self.router.float()
        if self.shared_gate_up is None or self.shared_down is None:
            return
        size, count = self.spec.size, len(self.held)
        up, down = self.shared_gate_up, self.shared_down
        _cut_rows(up.weight, self.gate_up[count:], size)
        form = self.down_form
        _cut_columns(down.weight, self.down[count:], size if form is None else form.stored_width(size))
        if up.weight_scales is not None and self.gate_up_scales is not None:
            _cut_rows(up.weight_scales, self.gate_up_scales[count:], size)
        if down.weight_scales is not None and self.down_scales is not None:
            _cut_columns(down.weight_scales, self.down_scales[count:], size // BLOCK)
        self.shared_gate_up = self.shared_down = None


def make_feed(spec: ModelSpec, layer: int) -> Part:
    """Experts or a dense feed, whichever the layer has."""
    is_mixture = isinstance(spec.layers[layer].feed, ExpertsSpec)
    return Experts(spec, layer) if is_mixture else SwiGLU(spec, layer)


def _cut_rows(stored: Tensor, experts: Tensor, size: int) -> None:
    """Gate rows and up rows, `size` of each to an expert; zeros where there are no more."""
    experts.zero_()
    for half, rows_ in zip(stored.chunk(2), (experts[:, :size], experts[:, size:]), strict=True):
        for piece, expert in zip(torch.split(half, size), rows_, strict=True):
            expert[: len(piece)].copy_(piece)


def _cut_columns(stored: Tensor, experts: Tensor, size: int) -> None:
    """`size` columns to an expert; zeros where there are no more."""
    experts.zero_()
    for piece, expert in zip(torch.split(stored, size, dim=1), experts, strict=True):
        expert[:, : piece.shape[1]].copy_(piece)


def _parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _routing(feed: ExpertsSpec) -> Routing:
    router = feed.router
    return Routing(
        top=feed.top,
        score=router.score,
        groups=router.groups,
        top_groups=router.top_groups,
        group_score=router.group_score,
        normalized=router.normalized,
        sum_eps=router.sum_eps,
        scale=router.scale,
        shared=-(-feed.shared_size // feed.size),
        shared_gate=feed.shared_gate,
        held=feed.held,
    )
