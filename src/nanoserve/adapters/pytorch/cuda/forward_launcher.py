"""A step as a chain of kernels: one token for each place of a batch, or prompt chunks and decoding rows together.

The model's own parts say what is computed, `linear_ops.py` and `mixers/gpu_step.py` how. Next: a model, `models/llama.py`, and its parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep
from nanoserve.adapters.pytorch.cuda.draft_head import GpuDraftHead
from nanoserve.adapters.pytorch.cuda.linear_ops import LinearOps
from nanoserve.adapters.pytorch.cuda.logits import Logits
from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.cuda.policies import Wide, policy_for
from nanoserve.adapters.pytorch.cuda.sums import Sums
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.encoder import Encoder
from nanoserve.adapters.pytorch.routed_experts import ExpertRecords
from nanoserve.kernels.copies.launch import embed_tokens


class ForwardLauncher:
    """Launches the kernels of a step; allocates nothing and waits for nothing, so that it can be captured.

    Attributes:
        mixers: of all layers of the model; `head`: drafts, of what it taps from between layers.
        records: of the experts that tokens go through; None where they are not recorded.
        many: the products of many rows; where they are invariant, all that it launches is.
        logits: of hidden states.
    """

    def __init__(
        self,
        model: DecoderModel,
        arena: Arena,
        space: Workspace,
        mixers: GpuMixers,
        *,
        many: ManyRows,
        brief: bool = False,
        sums: Sums | None = None,
        loras: DeviceLoras | None = None,
        records: ExpertRecords | None = None,
        head: GpuDraftHead | None = None,
    ) -> None:
        """`brief` passes through one layer of each kind alone: every kernel once, for rehearsals."""
        self.model, self.loras, self.records, self.head = model, loras, records, head
        self._layers = model.kinds() if brief else model.layers if head is None else head.tap(model.layers)
        self._arena, self._space, self.mixers = arena, space, mixers
        self._sums, self.many = sums or Sums(), many
        self.logits = Logits(model, arena, space, self._sums, many)

    def decode(
        self, places: Tensor, *, splits: int, pdl: bool, adapted: bool = False, width: int = 0
    ) -> Tensor:
        """The newest token of each of `places` [B], rows; returns logits [B, vocab], valid until the next step. Where some are `adapted`, the arena says how.

        With a `width`, as many tokens of each, drafts behind the newest, and logits [B * width, vocab]; rows may then be at their limits.
        """
        self._sums.begin(sends=not self.many.is_invariant)
        stream = self._space.stream[: len(places) * max(width, 1)]
        self._embed_newest(places, stream, pdl=pdl)
        step = self._step(stream, places=places, splits=splits, width=width, pdl=pdl)
        pdl = pdl and not self.many.is_invariant
        low_rank = self.loras.of(len(stream), pdl=pdl) if adapted and self.loras else None
        policy = policy_for(len(stream), self.many, self._space.most_skinny)
        ops = LinearOps(policy, self._sums, stream, self._space, pdl=pdl, low_rank=low_rank)
        self._run(self._layers, ops, step)
        if self.records is not None:
            self.records.keep_of(self._arena, self._arena.places[:0], places)
        return self.logits.cap(ops.logits(self.model.norm, self.model.head))

    def mixed(
        self,
        chunks: ChunkStep,
        num_decoding: int,
        *,
        splits: int,
        num_chosen: int | None = None,
        adapted: bool = False,
    ) -> Tensor:
        """Chunks' tokens, described in the arena, then the decoding places; normed hidden states [T, hidden].

        With `num_chosen`, those alone of the tokens that the arena's `logits_indices` choose: the last layer then
        computes nothing for the others but their keys and values, unless tokens are `adapted`: the arena says which of the whole step.
        """
        self._sums.begin()
        arena, num_tokens = self._arena, chunks.num_tokens
        stream, places = self._space.stream[: num_tokens + num_decoding], arena.places[:num_decoding]
        rows, positions = arena.token_rows[:num_tokens], arena.positions[:num_tokens]
        embedding, out = self.model.embedding, stream[:num_tokens]
        embed_tokens(arena.tokens, rows, positions, embedding.weight, out, scale=embedding.scale)
        if num_decoding:
            self._embed_newest(places, stream[num_tokens:], pdl=False)
        if isinstance(self.model, Encoder):
            self.model.add_positions(stream, arena.sections["added_rows"], self._space.normed)
        low_rank = self.loras.of() if self.loras and adapted else None
        ops = LinearOps(
            Wide(self.many.products), self._sums, stream, self._space, pdl=False, low_rank=low_rank
        )
        how: dict[str, Any] = {"splits": splits, "width": int(arena.sizes.max_width > 1)}
        step = self._step(stream, places=places, num_tokens=num_tokens, plans=chunks.plans, **how)
        self._run(self._layers[:-1], ops, step)
        is_narrow = num_chosen is not None and not (adapted or (self.head and self.head.taps_last))
        if num_chosen is not None and is_narrow:
            ops.narrow(arena.logits_indices[:num_chosen])
            step = attrs.evolve(step, chosen=arena.chosen_tiles[:num_chosen])
        self._run(self._layers[-1:], ops, step)
        if self.records is not None:
            self.records.keep_of(arena, rows, places)
        hidden = ops.complete(self.model.norm)
        return hidden if num_chosen is None or is_narrow else self.logits.choose(hidden, num_chosen)

    def _embed_newest(self, places: Tensor, stream: Tensor, *, pdl: bool) -> None:
        arena, embedding = self._arena, self.model.embedding
        how: dict[str, Any] = {"newest": True, "width": len(stream) // len(places), "pdl": pdl}
        how["scale"] = embedding.scale
        embed_tokens(arena.tokens, places, arena.lengths, embedding.weight, stream, **how)

    def _step(self, stream: Tensor, **how: Any) -> GpuStep:
        how |= {"mixers": self.mixers.by_layer, "invariant": self.many.is_invariant}
        return GpuStep(outs=Views(self._space.inner, len(stream)), **how)

    @staticmethod
    def _run(layers: Iterable[tuple[Part, ...]], ops: LinearOps, step: GpuStep) -> None:
        for parts in layers:
            for part in parts:
                part.run(ops, step)
