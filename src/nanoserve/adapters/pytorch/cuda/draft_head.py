"""A head that drafts (`models/eagle.py`, `models/mtp.py`), on a GPU: after a step's draw it reads the computed states, and it guesses at the beginning of the next step.

As on a CPU (`adapters/pytorch/eagle.py`), but nothing is known to the host: all positions of a step are computed, those of wrong drafts
too, and each row's gain says which state is kept. What is written behind that is written again before it is read.

`ends` are what `lengths` are to the model: up to where each row is known to the head. Between steps both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep
from nanoserve.adapters.pytorch.cuda.linear_ops import LinearOps
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.policies import policy_for
from nanoserve.adapters.pytorch.cuda.sums import Sums
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.models.eagle import EagleHead
from nanoserve.adapters.pytorch.models.mtp import MtpHead
from nanoserve.kernels.draft_head.launch import enter_head, guess_tokens, keep_states
from nanoserve.kernels.pointwise.launch import add_rms_norm_into
from nanoserve.ports.model_spec import ModelSpec


class Tap:
    """A part that leaves the stream as it is, and a copy of it times `unit` in `out` [max_tokens, hidden]."""

    def __init__(self, out: Tensor, unit: float) -> None:
        self._out, self._unit = out, unit

    def run(self, ops: LinearOps, _: object, /) -> None:
        stream = ops.complete(None)
        torch.mul(stream, self._unit, out=self._out[: len(stream)])


class GpuDraftHead:
    """Launches the head's kernels without allocating or waiting, so that it can be captured.

    Kernels do not overlap (`kernels.device.pdl`): those of attention would read what the ones just before them write.

    Attributes:
        tapped: [max_tokens, taps * hidden], what a step's layers leave for `learn`.
        taps_last: whether that is also what the last layer makes of all tokens.
    """

    def __init__(
        self,
        head: EagleHead | MtpHead,
        arena: Arena,
        space: Workspace,
        mixers: Mapping[int, GpuMixer],
        *,
        model: ModelSpec,
        many: ManyRows,
    ) -> None:
        """`space` is that of the `model`, which this computes in as well; `many` multiplies many tokens."""
        self._head, self._arena, self._mixers, self._many = head, arena, mixers, many
        size, most, stream = head.spec.hidden_size, len(space.stream), space.stream
        self._space = attrs.evolve(
            space,
            stream=_of_width(stream, size),
            normed=_of_width(space.normed, size),
            chosen=_of_width(space.chosen, size),
            logits=_of_width(space.logits, head.spec.vocab_size),
        )
        self._guessed_norm = None if isinstance(head, MtpHead) else head.norm
        self.tapped = stream.new_zeros(most, len(head.spec.taps) * model.hidden_size)
        self._count, self._unit = len(head.spec.taps), model.stream_unit
        self.taps_last = model.num_layers in head.spec.taps
        self._kept = stream.new_zeros(arena.sink_row + 1, size)
        self._token_ids = head.token_ids.int()
        self._ends = arena.sections["ends"]
        self._ends[arena.sink_row] = 1

    def tap(self, layers: Sequence[tuple[Part, ...]]) -> tuple[tuple[Part, ...], ...]:
        """The layers, with parts that keep the head's inputs for `learn`."""
        tapped = list(layers)
        for layer, out in zip(self._head.spec.taps, self.tapped.chunk(self._count, dim=1), strict=True):
            tap: Any = Tap(out, self._unit)
            if layer == len(layers):
                tapped[-1] = (*tapped[-1], tap)
            else:
                tapped[layer] = (tap, *tapped[layer])
        return tuple(tapped)

    def propose(self, *, batch_rows: Tensor, splits: int, width: int, pdl: bool) -> None:
        """Write `width` - 1 drafts behind the ends of `batch_rows` [B], a `Propose`."""
        del pdl
        stream = torch.index_select(self._kept, 0, batch_rows, out=self._space.stream[: len(batch_rows)])
        ops, arena = self._ops(stream), self._arena
        step = self._step(ops, places=batch_rows, splits=splits, width=1)
        for ahead in range(width - 1):
            is_last = ahead == width - 2
            guess_tokens(
                ops.logits(self._guessed_norm, self._head.head),
                token_ids=self._token_ids,
                batch_rows=batch_rows,
                tokens=arena.tokens,
                lengths=arena.lengths,
                limits=arena.limits,
                takes_drafts=arena.takes_drafts,
                ends=self._ends,
                ahead=ahead,
                next_ahead=0 if is_last else ahead,
            )
            if not is_last:
                self._compute(ops, step)
                ops.complete(None)

    def learn(self, places: Tensor, *, splits: int, width: int) -> None:
        """Read the states of a drawn step for `places`, `width` tokens each as in a `GpuStep`."""
        count = len(places) * max(width, 1)
        ops = self._join(count)
        self._compute(ops, self._step(ops, places=places, splits=splits, width=width))
        where: dict[str, Any] = {"lengths": self._arena.lengths, "ends": self._ends, "kept": self._kept}
        keep_states(ops.complete(None), batch_rows=places, **where, width=max(width, 1))

    def learn_chunks(self, step: ChunkStep, num_decoding: int, *, splits: int, num_chosen: int) -> None:
        """Read the states of a drawn mixed step; those of the `num_chosen` tokens that were drawn from are computed to the end."""
        arena, num_tokens = self._arena, step.num_tokens
        ops = self._join(num_tokens + num_decoding)
        how: dict[str, Any] = {"num_tokens": num_tokens, "plans": step.plans, "width": 1}
        how["chosen"] = arena.chosen_tiles[:num_chosen]
        ops.narrow(arena.logits_indices[:num_chosen])
        self._compute(ops, self._step(ops, places=arena.places[:num_decoding], splits=splits, **how))
        if num_chosen:
            where: dict[str, Any] = {"lengths": arena.lengths, "ends": self._ends, "kept": self._kept}
            places = arena.sampling_places[:num_chosen]
            keep_states(ops.complete(None), batch_rows=places, **where, counted=False)

    def _ops(self, stream: Tensor) -> LinearOps:
        policy = policy_for(len(stream), self._many, self._space.most_skinny)
        return LinearOps(policy, Sums(), stream, self._space, pdl=False)

    def _step(self, ops: LinearOps, **how: Any) -> GpuStep:
        how |= {"mixers": self._mixers, "invariant": self._many.is_invariant}
        return GpuStep(outs=Views(self._space.inner, len(ops.stream)), **how)

    def _join(self, tokens: int) -> LinearOps:
        """Begin with the taps of this many tokens, joined or normed."""
        ops = self._ops(self._space.stream[:tokens])
        if tokens and isinstance(self._head, MtpHead):
            norm = self._head.model_norm
            add_rms_norm_into(self.tapped[:tokens], norm.weight, ops.stream, eps=norm.eps)
        elif tokens:
            ops.policy.multiply(ops, self.tapped[:tokens], self._head.join, ops.stream)
        return ops

    def _compute(self, ops: LinearOps, step: GpuStep) -> None:
        """The layer, over hidden states in the stream, of chunks' tokens and then of places."""
        head, arena, stream = self._head, self._arena, ops.stream
        entering = Views(self._space.inner, len(stream))[head.entering]
        of_chunks, of_places = slice(step.num_tokens), slice(step.num_tokens, None)
        common: dict[str, Any] = {
            "embedding": head.embedding.weight,
            "scale": head.embedding.scale,
            "token_norm": head.input_norm.weight,
            "state_norm": head.hidden_norm.weight,
            "eps": head.spec.norm.eps,
            "keeps_normed": head.spec.adds_normed,
        }
        if step.num_tokens:
            where: dict[str, Any] = {"token_rows": arena.token_rows, "positions": arena.positions}
            enter_head(arena.tokens, stream[of_chunks], out=entering[of_chunks], **where, **common)
        if len(step.places):
            where = {"token_rows": step.places, "positions": self._ends, "newest": True}
            where["width"] = max(step.width, 1)
            enter_head(arena.tokens, stream[of_places], out=entering[of_places], **where, **common)
        if isinstance(head, MtpHead):
            if len(stream):
                ops.policy.multiply(ops, entering, head.join, stream)
            head.run(ops, step)
            return
        qkv = ops.entered[head.attention.qkv.out_features]
        ops.policy.multiply(ops, entering, head.attention.qkv, qkv)
        ops.project_out(step.mix(head.attention, qkv), head.attention.output)
        head.feed.run(ops, step)


class BehindDraw:
    """The work behind the draw of a step in which all rows decode: states go on with the tokens that count, and the head that drafts reads the step."""

    def __init__(self, settling: Sequence[Callable[[Tensor], None]], head: GpuDraftHead | None) -> None:
        self._settling, self._head = settling, head

    def has_work(self, width: int) -> bool:
        """True if there is any for places of so many tokens."""
        return self._head is not None or (width > 1 and bool(self._settling))

    def run(self, places: Tensor, *, splits: int, width: int) -> None:
        """Queue it, for a step with these arguments."""
        for settle in self._settling if width > 1 else ():
            settle(places)
        if self._head is not None:
            self._head.learn(places, splits=splits, width=width)


def _of_width(buffer: Tensor, width: int) -> Tensor:
    """Memory for as many rows of another width, the same where that suffices."""
    rows = len(buffer)
    if width > buffer.shape[1]:
        return buffer.new_empty(rows, width)
    return buffer.view(-1)[: rows * width].view(rows, width)
