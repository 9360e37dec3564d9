"""A step as a chain of kernels: one token for each place of a batch, or prompt chunks and decoding rows together.

The model's own parts say what is computed, `linear_ops.py` and `mixers/gpu_step.py` how. Next: a model, `models/llama.py`, and its parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep
from nanoserve.adapters.pytorch.cuda.draft_head import GpuDraftHead
from nanoserve.adapters.pytorch.cuda.linear_ops import LinearOps
from nanoserve.adapters.pytorch.cuda.logits import Logits
from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.cuda.policies import Invariant, Wide, policy_for
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
        encoder: of a model that only computes whole texts.
        is_invariant: whether it launches kernels that compute a token's bits from the tokens before it alone; see `invariant`.
        logits: of hidden states. `multiplications`: see `DecoderModel`.
    """

    def __init__(
        self,
        model: DecoderModel,
        arena: Arena,
        space: Workspace,
        mixers: GpuMixers,
        *,
        invariant: bool,
        brief: bool = False,
        sums: Sums | None = None,
        loras: DeviceLoras | None = None,
        records: ExpertRecords | None = None,
        head: GpuDraftHead | None = None,
    ) -> None:
        """`brief` passes through one layer of each kind alone: every kernel once, for rehearsals."""
        self.loras, self.encoder, self.records, self.head = loras, model.spec.encoder, records, head
        self._layers = model.kinds() if brief else model.layers if head is None else head.tap(model.layers)
        self.multiplications, self.pooled_layers = model.multiplications, model.pooled_layers
        self._embedding, self._norm, self._head = model.embedding, model.norm, model.head
        self._encoder = model if isinstance(model, Encoder) else None
        self._arena, self._space, self.mixers = arena, space, mixers
        self._sums, many = sums or Sums(), Invariant() if invariant else Wide()
        self.logits = Logits(model, arena, space, self._sums, many.products)
        self._use(many)

    def _use(self, many: Wide) -> None:
        self._many, self.is_invariant, self.logits.products = many, many.invariant, many.products
        if self.loras is not None:
            self.loras.invariant = many.invariant

    @contextlib.contextmanager
    def invariant(self) -> Iterator[None]:
        """Launch invariant kernels, until this ends."""
        before = self._many
        self._use(Invariant())
        try:
            yield
        finally:
            self._use(before)

    def decode(
        self, places: Tensor, *, splits: int, pdl: bool, adapted: bool = False, width: int = 0
    ) -> Tensor:
        """The newest token of each of `places` [B], rows; returns logits [B, vocab], valid until the next step. Where some are `adapted`, the arena says how.

        With a `width`, as many tokens of each, drafts behind the newest, and logits [B * width, vocab]; rows may then be at their limits.
        """
        self._sums.begin()
        stream = self._space.stream[: len(places) * max(width, 1)]
        self._embed_newest(places, stream, pdl=pdl)
        step = self._step(stream, places=places, splits=splits, width=width, pdl=pdl)
        pdl = pdl and not self._many.invariant
        low_rank = self.loras.of_batch(len(stream), pdl=pdl) if adapted and self.loras else None
        policy = policy_for(len(stream), self._many)
        ops = LinearOps(policy, self._sums, stream, self._space, pdl=pdl, low_rank=low_rank)
        self._run(self._layers, ops, step)
        if self.records is not None:
            self.records.keep_of(self._arena, self._arena.places[:0], places)
        return self.logits.cap(ops.logits(self._norm, self._head))

    def mixed(
        self,
        chunks: ChunkStep,
        num_decoding: int,
        *,
        splits: int,
        num_chosen: int | None = None,
        lora_units: int = 0,
    ) -> Tensor:
        """Chunks' tokens, described in the arena, then the decoding places; normed hidden states [T, hidden].

        With `num_chosen`, those alone of the tokens that the arena's `logits_indices` choose: the last layer then
        computes nothing for the others but their keys and values. It goes without `lora_units`, of tokens that have adapters.
        """
        self._sums.begin()
        arena, num_tokens = self._arena, chunks.num_tokens
        stream, places = self._space.stream[: num_tokens + num_decoding], arena.places[:num_decoding]
        rows, positions = arena.token_rows[:num_tokens], arena.positions[:num_tokens]
        weight, scale = self._embedding.weight, self._embedding.scale
        embed_tokens(arena.tokens, rows, positions, weight, stream[:num_tokens], scale=scale)
        if num_decoding:
            self._embed_newest(places, stream[num_tokens:], pdl=False)
        if self._encoder is not None:
            self._encoder.add_positions(stream, arena.sections["added_rows"], self._space.normed)
        low_rank = self.loras.of_chunks() if self.loras and lora_units else None
        ops = LinearOps(self._many, self._sums, stream, self._space, pdl=False, low_rank=low_rank)
        width = int(arena.sizes.max_width > 1)
        of_chunks: dict[str, Any] = {"num_tokens": num_tokens, "plans": chunks.plans}
        step = self._step(stream, places=places, splits=splits, width=width, **of_chunks)
        self._run(self._layers[:-1], ops, step)
        is_narrow = num_chosen is not None and not (self.head and self.head.taps_last)
        if num_chosen is not None and is_narrow:
            ops.narrow(arena.logits_indices[:num_chosen])
            step = attrs.evolve(step, chosen=arena.chosen_tiles[: num_chosen - num_decoding])
        self._run(self._layers[-1:], ops, step)
        if self.records is not None:
            self.records.keep_of(arena, rows, places)
        hidden = ops.complete(self._norm)
        return hidden if num_chosen is None or is_narrow else self.logits.choose(hidden, num_chosen)

    def _embed_newest(self, places: Tensor, stream: Tensor, *, pdl: bool) -> None:
        tokens, lengths, weight = self._arena.tokens, self._arena.lengths, self._embedding.weight
        how: dict[str, Any] = {"newest": True, "width": len(stream) // len(places), "pdl": pdl}
        embed_tokens(tokens, places, lengths, weight, stream, scale=self._embedding.scale, **how)

    def _step(self, stream: Tensor, **how: Any) -> GpuStep:
        how |= {"mixers": self.mixers.by_layer, "invariant": self.is_invariant}
        return GpuStep(outs=Views(self._space.inner, len(stream)), **how)

    @staticmethod
    def _run(layers: Iterable[tuple[Part, ...]], ops: LinearOps, step: GpuStep) -> None:
        for parts in layers:
            for part in parts:
                part.run(ops, step)
