"""The runner on torch: applies a plan's deltas to its rows, computes one forward pass, and samples.

Everything a step produces stays on the device until `collect`, and the next step may be submitted before that: its
rows already hold the tokens that this one sampled.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.lora.deltas import RowLoras
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.offload import Offload
from nanoserve.adapters.pytorch.pooling import Pooled, RowPooling, add_pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, PromptScoring
from nanoserve.adapters.pytorch.sampling import Sampler, Scores, score_tensors
from nanoserve.adapters.pytorch.step_inputs import Rows
from nanoserve.ports.engine_facts import EngineSizes, RunnerCounts
from nanoserve.ports.grammar import MaskBlock, Masks, new_block
from nanoserve.ports.step import AdmittedRow, StepPlan, StepResult, TokenLogprobs


@attrs.define(eq=False, kw_only=True)
class TorchTicket:
    """A submitted step's outcome, on the device.

    Attributes:
        undrawn: until `draw`, of a step with masked rows: these, the sampling rows on the device, and their logits.
        rows: the rows that sampled, and `tokens`, [S], what they got.
        asked: the rows that were to sample, where others than those.
        finite: [S] whether the logit of each token is a finite number; if not, the row's logits are broken.
        scored_rows: the rows that asked for log-probabilities, and `scores`, theirs.
    """

    step: int
    undrawn: tuple[tuple[int, ...], Tensor, Tensor] | None = None
    rows: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    tokens: Tensor | None = None
    finite: Tensor | None = None
    scored_rows: tuple[int, ...] = ()
    scores: Scores | None = None
    prompt_scores: tuple[PromptScores, ...] = ()
    pooled: tuple[Pooled, ...] = ()


class TorchRunner:
    """Fulfils `ModelRunner` and `LateDrawing`; one process, one device, the one its model is on.

    Attributes:
        kv: the KV cache of every layer.
        host: slots of host memory; None where `sizes` want none.
        loras: adapters that plans may load; None where `sizes` have no slots for them.
    """

    def __init__(self, model: DecoderModel, sizes: EngineSizes) -> None:
        weight = next(each for each in model.parameters() if each.is_floating_point())
        max_num_seqs, num_groups = sizes.max_num_seqs, len(model.spec.cache_groups)
        self._model = model
        self.kv = KVStore(
            model.spec,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            dtype=weight.dtype,
            device=weight.device,
        )
        self._offload = Offload(self.kv, sizes.host_slots) if sizes.host_slots else None
        self.host = self._offload and self._offload.slots
        self._rows = Rows(sizes, num_groups=num_groups, device=weight.device)
        vocab_size = model.spec.vocab_size
        self._sampler = Sampler(vocab_size=vocab_size, max_rows=max_num_seqs, device=weight.device)
        self._prompt_scoring = PromptScoring()
        self._pooling = RowPooling(model.logits, model.classifier)
        self._logprobs: dict[int, int] = {}
        self.loras = HostLoras.for_sizes(model, sizes)
        self._row_loras: RowLoras | None = None
        if self.loras is not None:
            self._row_loras = RowLoras(self.loras, invariant=model.is_invariant)

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> TorchTicket:
        """Apply a plan and queue its computation; on a CPU it is computed on return."""
        self._apply(plan)
        if not plan.num_tokens:
            return TorchTicket(step=plan.step)
        step = self._rows.step(plan)
        low_rank = self._row_loras and self._row_loras.of_step(plan)
        hidden = self._model(step.inputs, self.kv, low_rank=low_rank)
        ticket = TorchTicket(step=plan.step, rows=plan.sampling_rows)
        if self._prompt_scoring.asked:
            scored = self._prompt_scoring.score(plan.chunks, hidden, self._rows.tokens, self._model.logits)
            ticket.prompt_scores = tuple(scored)
        if self._pooling.asked:
            ticket.pooled = tuple(self._pooling.pool(plan.chunks, hidden))
        if not ticket.rows:
            return ticket
        if plan.chunks:
            hidden = hidden.index_select(0, step.inputs.logits_indices)
        logits = self._model.logits(hidden)
        if plan.masked:
            ticket.undrawn = (plan.masked, step.sampling, logits)
        else:
            self._sample(ticket, step.sampling, logits, {})
        return ticket

    def mask_block(self, count: int, /) -> MaskBlock:
        """As in `LateDrawing`."""
        return new_block(self._model.spec.vocab_size, count)

    @torch.inference_mode()
    def draw(self, ticket: TorchTicket, masks: Masks, /) -> None:
        """As in `LateDrawing`."""
        assert ticket.undrawn is not None
        (masked, index, logits), ticket.undrawn = ticket.undrawn, None
        missing = set(masked) - masks.keys()
        if missing:
            drawn = [place for place, row in enumerate(ticket.rows) if row not in missing]
            index, logits = index[drawn], logits[drawn]
            ticket.asked, ticket.rows = ticket.rows, tuple(ticket.rows[place] for place in drawn)
        if ticket.rows:
            self._sample(ticket, index, logits, masks)

    def collect(self, ticket: TorchTicket, /) -> StepResult:
        """Bring a step's outcome to the host."""
        broken: tuple[int, ...] = ()
        if ticket.finite is not None and not bool(ticket.finite.all()):
            good = ticket.finite.tolist()
            broken = tuple(row for row, is_good in zip(ticket.rows, good, strict=True) if not is_good)
        prompt_logprobs: dict[int, dict[int, TokenLogprobs]] = {}
        for each in ticket.prompt_scores:
            prompt_logprobs.setdefault(each.row, {}).update(each.read())
        scores = [] if ticket.scores is None else ticket.scores.read()
        token_ids = [] if ticket.tokens is None else ticket.tokens.tolist()
        if ticket.asked:
            drawn = dict(zip(ticket.rows, token_ids, strict=True))
            token_ids = [drawn.get(row, 0) for row in ticket.asked]
        result = StepResult(
            token_ids=token_ids,
            logprobs={row: (score,) for row, score in zip(ticket.scored_rows, scores, strict=True)},
            prompt_logprobs=prompt_logprobs,
            broken=broken,
            copied=() if self._offload is None else self._offload.finished(ticket.step, wait=True),
        )
        return add_pooled(result, ticket.pooled) if ticket.pooled else result

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()

    def _apply(self, plan: StepPlan) -> None:
        if self._row_loras is not None:
            self._row_loras.load(plan.lora_loads)
        for row in plan.released:
            self._release(row)
        for admitted in plan.admitted:
            self._admit(admitted)
        if plan.table_updates:
            self._rows.update_tables(plan.table_updates)
        if plan.copies:
            self.kv.copy(plan.copies)
        if self._offload is not None:
            self._offload.start(plan)

    def _release(self, row: int) -> None:
        self._logprobs.pop(row, None)
        self._prompt_scoring.asked.pop(row, None)
        if self._row_loras is not None:
            self._row_loras.rows.pop(row, None)
        if self._pooling.asked:
            self._pooling.release(row)
        self._sampler.release(row)

    def _admit(self, admitted: AdmittedRow) -> None:
        self._release(admitted.row)
        self._rows.admit(admitted)
        self._sampler.admit(admitted)
        if admitted.sampling.prompt_logprobs is not None:
            self._prompt_scoring.admit(admitted)
        if self._row_loras is not None and admitted.lora_slot:
            self._row_loras.rows[admitted.row] = admitted.lora_slot
        if admitted.pooling is not None:
            self._pooling.admit(admitted)
        if admitted.sampling.logprobs is not None:
            self._logprobs[admitted.row] = admitted.sampling.logprobs

    def _sample(
        self, ticket: TorchTicket, index: Tensor, logits: Tensor, masks: Mapping[int, memoryview]
    ) -> None:
        """Sample into the ticket's rows, which `index` holds on the device.

        That consumes the logits: what the rows that want log-probabilities need is copied first.
        """
        rows = ticket.rows
        places = [place for place, row in enumerate(rows) if row in self._logprobs] if self._logprobs else []
        untouched = logits[places] if places else None
        for place, row in enumerate(rows) if masks else ():
            if row in masks:
                logits[place].masked_fill_(_forbidden(masks[row], logits), -torch.inf)
        ticket.tokens = tokens = self._sampler.sample(logits, rows)
        self._rows.append(index, rows, tokens)
        ticket.finite = logits.gather(1, tokens[:, None])[:, 0].isfinite()
        ticket.scored_rows = tuple(rows[place] for place in places)
        if untouched is not None:
            top = [self._logprobs[row] for row in ticket.scored_rows]
            ticket.scores = score_tensors(untouched, tokens[places], top)


def _forbidden(mask: memoryview, logits: Tensor) -> Tensor:
    """The ids that a mask does not allow, bool [vocab], where the logits are."""
    packed = torch.frombuffer(mask, dtype=torch.uint8)
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return (bits.flatten()[: logits.shape[1]] == 0).to(logits.device)
