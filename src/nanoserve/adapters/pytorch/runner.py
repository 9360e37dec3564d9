"""The runner on torch: applies a plan's deltas to its rows, computes one forward pass, and samples.

Everything a step produces stays on the device until `collect`, and the next step may be submitted before that: its
rows already hold the tokens that this one sampled.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.draft_model import make_drafts
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.lora.deltas import RowLoras
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.offload import Offload
from nanoserve.adapters.pytorch.parallel.expert_loads import ExpertLoads
from nanoserve.adapters.pytorch.pooling import Pooled, RowPooling, add_pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, PromptScoring, read_scores
from nanoserve.adapters.pytorch.routed_experts import ExpertRecords, Here, Routed, reports
from nanoserve.adapters.pytorch.sampling import Sampler, Scores, drawn_from, score_tensors
from nanoserve.adapters.pytorch.sampling.row_settings import DeviceSettings, device_settings
from nanoserve.adapters.pytorch.step_inputs import Rows, Span, StepInputs
from nanoserve.ports.driven import Drafter
from nanoserve.ports.engine_facts import EngineSizes, RunnerCounts
from nanoserve.ports.grammar import MaskBlock, Masks, new_block
from nanoserve.ports.step import AdmittedRow, Chunk, StepPlan, StepResult, TokenLogprobs, accepted_length

_FORBIDDEN = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).eq(0).view(torch.int64)[:, 0]
"""[256] of each byte of a mask the eight ids that it does not allow, as a bool each."""


@attrs.define(eq=False, kw_only=True)
class TorchTicket:
    """A submitted step's outcome, on the device.

    Attributes:
        undrawn: until `draw`, of a step with masked rows: these, and what draws it by masks, but for rows that get none.
        unlearnt: until it is drawn, what a head is to read of the step, as `EagleDrafts.learn` takes it.
        rows: the rows that sampled, and `tokens`, [S], what they got; of a wide step each row as often as it gained a token.
        counts, drafts: of a wide step, as in `StepResult`.
        asked: the rows that were to sample, where others than those.
        drawn_logits: [S] the logit of each token; one that is no finite number says that the row's logits are broken.
        scored_rows: the rows that asked for log-probabilities, and `scores`, theirs.
    """

    step: int
    undrawn: tuple[tuple[int, ...], Callable[..., None]] | None = None
    unlearnt: tuple[Sequence[Span], Tensor] | None = None
    rows: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    tokens: Tensor | None = None
    drawn_logits: Tensor | None = None
    scored_rows: tuple[int, ...] = ()
    scores: Scores | None = None
    prompt_scores: tuple[PromptScores, ...] = ()
    pooled: tuple[Pooled, ...] = ()
    routed: tuple[Routed, ...] = ()


class TorchRunner:
    """Fulfils `ModelRunner` and `LateDrawing`; one process, one device, the one its model is on.

    Attributes:
        kv: the KV cache of every layer.
        host: slots of host memory; None if `sizes` want none.
        loras: adapters that plans may load; None if `sizes` have no slots for them.
    """

    def __init__(self, model: DecoderModel, sizes: EngineSizes, drafter: Drafter | None = None) -> None:
        weight = next(each for each in model.parameters() if each.is_floating_point())
        max_num_seqs, num_groups = sizes.max_num_seqs, len(model.spec.cache_groups)
        self._model, self._expert_loads = model, ExpertLoads(model.expert_tokens)
        self.kv = KVStore(
            model.spec,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            dtype=weight.dtype,
            device=weight.device,
            routed_experts=sizes.routed_experts,
        )
        self._records = ExpertRecords.for_sizes(model, self.kv, sizes, sizes.max_num_batched_tokens)
        self._offload = Offload(self.kv, sizes.host_slots) if sizes.host_slots else None
        self.host = self._offload and self._offload.slots
        self._rows = Rows(sizes, num_groups=num_groups, device=weight.device)
        vocab_size = model.spec.vocab_size
        self._sampler = Sampler(vocab_size=vocab_size, max_rows=max_num_seqs, device=weight.device)
        self._prompt_scoring = PromptScoring()
        self._pooling = RowPooling(model.logits, model.pooled_layers)
        self._logprobs: dict[int, tuple[int, DeviceSettings]] = {}
        self._processed_logprobs = sizes.processed_logprobs
        self._drafter = drafter
        self._head = make_drafts(model, self._rows, self.kv, self._sampler)
        self.loras = HostLoras.for_sizes(model, sizes)
        self._row_loras = None if self.loras is None else RowLoras(self.loras)
        self._always_invariant = model.is_invariant
        self._admitted: dict[int, AdmittedRow] = {}

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> TorchTicket:
        """Apply a plan and queue its computation; on a CPU it is computed on return."""
        self._apply(plan)
        if not plan.num_tokens:
            return TorchTicket(step=plan.step)
        self._model.is_invariant = invariant = self._always_invariant or plan.invariant
        if self._row_loras is not None:
            self._row_loras.invariant = invariant
        if plan.width > 1 or any(each.unverified for each in plan.chunks):
            return self._submit_wide(plan)
        undrafted: dict[int, Sequence[int]] = dict.fromkeys(plan.decoding, ())
        inputs = self._rows.step(plan.chunks, undrafted)
        low_rank = self._row_loras and self._row_loras.of_step(
            plan.chunks, [(row, 1) for row in plan.decoding]
        )
        spans = self._rows.spans(plan.chunks, undrafted)
        ticket = TorchTicket(step=plan.step, rows=plan.sampling_rows)
        hidden = self._compute(inputs, spans, low_rank, ticket)
        self._read_prompts(plan.chunks, hidden, ticket)
        if not ticket.rows:
            self._learn(ticket)
            return ticket
        if plan.chunks:
            hidden = hidden.index_select(0, inputs.logits_indices)
        logits = self._model.logits(hidden)
        self._draw_now_or_later(plan, ticket, functools.partial(self._draw_narrow, ticket, logits))
        return ticket

    def _submit_wide(self, plan: StepPlan) -> TorchTicket:
        """A row without drafts costs the same as in a narrow step, and a row at its end nothing."""
        verified = {each.row: self._rewind(each) for each in plan.chunks if each.samples}
        drafts = self._draft(plan)
        chunk_rows, guesses = list(verified), verified | drafts
        compared = tuple([len(guesses.get(row, ())) for row in (*chunk_rows, *plan.decoding)])
        ticket = TorchTicket(step=plan.step, drafts=compared)
        ticket.counts = (1,) * len(chunk_rows) + (0,) * len(plan.decoding)
        if not plan.chunks and not drafts:
            return ticket
        inputs = self._rows.step(plan.chunks, drafts)
        lengths = [(row, 1 + len(guesses)) for row, guesses in drafts.items()]
        low_rank = self._row_loras and self._row_loras.of_step(plan.chunks, lengths)
        hidden = self._compute(inputs, self._rows.spans(plan.chunks, drafts), low_rank, ticket)
        self._read_prompts(plan.chunks, hidden, ticket)
        if len(inputs.logits_indices):
            logits = self._model.logits(hidden.index_select(0, inputs.logits_indices))
            asked = (*chunk_rows, *plan.decoding)
            self._draw_now_or_later(
                plan, ticket, functools.partial(self._draw_wide, ticket, asked, guesses, logits)
            )
        else:
            self._learn(ticket)
        return ticket

    def _compute(
        self, inputs: StepInputs, spans: Sequence[Span], low_rank: Any, ticket: TorchTicket
    ) -> Tensor:
        """Hidden states of a step's tokens; the head's inputs wait in the ticket for the draw."""
        head = self._head
        hidden: Tensor = self._model(inputs, self.kv, head and head.observe, low_rank=low_rank)
        if head is not None:
            ticket.unlearnt = spans, head.take_tapped()
        if self._records is not None:
            blocks, offsets = inputs.groups[self._records.group].places
            slots = blocks * self.kv.block_size + offsets
            ticket.routed = self._records.keep(slots).report(spans, Here)
        return hidden

    def _learn(self, ticket: TorchTicket) -> None:
        if self._head is not None and ticket.unlearnt is not None:
            self._head.learn(*ticket.unlearnt)
            ticket.unlearnt = None

    def _draw_now_or_later(self, plan: StepPlan, ticket: TorchTicket, draw: Callable[..., None]) -> None:
        if plan.masked:
            ticket.undrawn = plan.masked, draw
        else:
            draw(masks={}, missing=frozenset())
            self._learn(ticket)

    def _draw_wide(
        self,
        ticket: TorchTicket,
        asked: Sequence[int],
        guesses: Mapping[int, Sequence[int]],
        logits: Tensor,
        *,
        masks: Mapping[int, memoryview],
        missing: AbstractSet[int],
    ) -> None:
        """Draw for rows with drafts, from logits of all these places: the next place of each row while its drafts are right."""
        ends = itertools.accumulate([1 + len(drafts) for drafts in guesses.values()], initial=0)
        starts = dict(zip(guesses, ends, strict=False))
        gained: dict[int, list[int]] = {row: [] for row in guesses if row not in missing}
        shaped: dict[int, Tensor] = {}
        going, ahead = list(gained), 0
        while going:
            places = [starts[row] + ahead for row in going]
            chosen = logits[places]
            for place, row in enumerate(going) if masks else ():
                if row in masks:
                    chosen[place].masked_fill_(_forbidden(masks[row], logits, ahead), -torch.inf)
            drawn = self._sampler.sample(chosen, going).tolist()
            shaped.update(zip(places, chosen, strict=True))
            for row, token in zip(going, drawn, strict=True):
                gained[row].append(token)
            going = [row for row in going if accepted_length(guesses[row], gained[row]) > len(gained[row])]
            ahead += 1
        ticket.counts = tuple(len(gained.get(row, ())) for row in asked)
        self._rows.gain(gained)
        if not gained:
            return
        kept = [starts[row] + each for row, tokens in gained.items() for each in range(len(tokens))]
        ticket.rows = tuple(row for row, tokens in gained.items() for _ in tokens)
        ticket.tokens = torch.tensor([*itertools.chain(*gained.values())], device=logits.device)
        untouched = logits[[kept[place] for place in self._scored(ticket.rows)]]
        self._note_draws(ticket, torch.stack([shaped[place] for place in kept]), untouched)

    def _rewind(self, chunk: Chunk) -> Sequence[int]:
        """The tokens that a row has decoded and the chunk is to verify; the row and its draws go back to what is before."""
        if not chunk.unverified:
            return ()
        decoded = self._rows.rewind(row := chunk.row, chunk.unverified)
        self._sampler.admit(attrs.evolve(self._admitted[row], token_ids=tuple(self._rows.token_ids(row))))
        return decoded

    def _draft(self, plan: StepPlan) -> dict[int, Sequence[int]]:
        """The drafts of each decoding row that is not at its end."""
        rooms = {row: self._admitted[row].max_length - self._rows.length(row) - 1 for row in plan.decoding}
        most = {row: min(plan.width - 1, room) for row, room in rooms.items() if room >= 0}
        drafts: dict[int, Sequence[int]] = dict.fromkeys(most, ())
        drafts.update(
            {each.row: each.token_ids[: most[each.row]] for each in plan.drafts if each.row in most}
        )
        asking = {row for row in plan.decoding if self._admitted[row].sampling.drafts} - {*plan.masked}
        free = {row: count for row, count in most.items() if count and row in asking}
        if self._head is not None:
            drafts.update(self._head.propose(free))
        elif self._drafter is not None:
            for row, count in free.items():
                drafts[row] = self._drafter.propose(self._rows.token_ids(row), count)
        return drafts

    def _read_prompts(self, chunks: tuple[Chunk, ...], hidden: Tensor, ticket: TorchTicket) -> None:
        if self._prompt_scoring.asked:
            scored = self._prompt_scoring.score(chunks, hidden, self._rows.tokens, self._model.logits)
            ticket.prompt_scores = tuple(scored)
        if self._pooling.asked:
            ticket.pooled = tuple(self._pooling.pool(chunks, hidden))

    def mask_block(self, count: int, /) -> MaskBlock:
        return new_block(self._model.spec.vocab_size, count)

    @torch.inference_mode()
    def draw(self, ticket: TorchTicket, masks: Masks, /) -> None:
        assert ticket.undrawn is not None
        (masked, draw), ticket.undrawn = ticket.undrawn, None
        draw(masks=masks, missing=set(masked) - masks.keys())
        self._learn(ticket)

    def _draw_narrow(
        self,
        ticket: TorchTicket,
        logits: Tensor,
        *,
        masks: Mapping[int, memoryview],
        missing: AbstractSet[int],
    ) -> None:
        if missing:
            drawn = [place for place, row in enumerate(ticket.rows) if row not in missing]
            logits = logits[drawn]
            ticket.asked, ticket.rows = ticket.rows, tuple(ticket.rows[place] for place in drawn)
        if ticket.rows:
            self._sample(ticket, logits, masks)

    def collect(self, ticket: TorchTicket, /) -> StepResult:
        numbers = [] if ticket.drawn_logits is None else ticket.drawn_logits.tolist()
        bad = [row for row, number in zip(ticket.rows, numbers, strict=False) if not math.isfinite(number)]
        broken = tuple(dict.fromkeys(bad))
        scores = [] if ticket.scores is None else ticket.scores.read()
        token_ids = [] if ticket.tokens is None else ticket.tokens.tolist()
        if ticket.asked:
            drawn = dict(zip(ticket.rows, token_ids, strict=True))
            token_ids = [drawn.get(row, 0) for row in ticket.asked]
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, score in zip(ticket.scored_rows, scores, strict=True):
            logprobs[row] = (*logprobs.get(row, ()), score)
        result = StepResult(
            token_ids=token_ids,
            counts=ticket.counts,
            drafts=ticket.drafts,
            logprobs=logprobs,
            prompt_logprobs=read_scores(ticket.prompt_scores) if ticket.prompt_scores else {},
            routed_experts=reports(ticket.routed) if ticket.routed else {},
            broken=broken,
            copied=() if self._offload is None else self._offload.finished(ticket.step, wait=True),
        )
        return add_pooled(result, ticket.pooled) if ticket.pooled else result

    def counts(self) -> RunnerCounts:
        return RunnerCounts(**self._expert_loads.read())

    def _apply(self, plan: StepPlan) -> None:
        if self._row_loras is not None:
            self._row_loras.load(plan.lora_loads)
        if self._records is not None:
            self._records.apply(plan)
        for row in plan.released:
            self._release(row)
        if plan.admitted or plan.copies:
            self.kv.kept.clear()
        for admitted in plan.admitted:
            self._admit(admitted)
        if plan.table_updates:
            self._rows.update_tables(plan.table_updates)
        if plan.copies:
            self.kv.copy(plan.copies)
        if self._offload is not None:
            self._offload.start(plan)

    def _release(self, row: int) -> None:
        self._admitted.pop(row, None)
        self._logprobs.pop(row, None)
        if self._head is not None:
            self._head.release(row)
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
        self._admitted[admitted.row] = admitted
        if admitted.sampling.prompt_logprobs is not None:
            self._prompt_scoring.admit(admitted)
        if self._row_loras is not None and admitted.lora_slot:
            self._row_loras.rows[admitted.row] = admitted.lora_slot
        if admitted.pooling is not None:
            self._pooling.admit(admitted)
        if admitted.sampling.logprobs is not None:
            settings = device_settings(admitted.sampling, self._model.spec.vocab_size)
            self._logprobs[admitted.row] = (admitted.sampling.logprobs, settings)

    def _sample(self, ticket: TorchTicket, logits: Tensor, masks: Mapping[int, memoryview]) -> None:
        """Sample into the ticket's rows. That consumes the logits, so the logits of rows that want log-probabilities are copied first."""
        rows = ticket.rows
        untouched = logits[self._scored(rows)] if self._logprobs else logits
        for row, mask in masks.items():
            logits[rows.index(row)].masked_fill_(_forbidden(mask, logits, 0), -torch.inf)
        ticket.tokens = tokens = self._sampler.sample(logits, rows)
        self._rows.append(rows, tokens)
        self._note_draws(ticket, logits, untouched)

    def _scored(self, rows: Sequence[int]) -> list[int]:
        """The indices of the rows that want log-probabilities."""
        return [place for place, row in enumerate(rows) if row in self._logprobs] if self._logprobs else []

    def _note_draws(self, ticket: TorchTicket, logits: Tensor, untouched: Tensor) -> None:
        """Note a result's values for the ticket's tokens beside their ids; `untouched` are the model's own logits of those that are scored."""
        assert ticket.tokens is not None
        ticket.drawn_logits = logits.gather(1, ticket.tokens[:, None])[:, 0]
        places = self._scored(ticket.rows)
        ticket.scored_rows = tuple(ticket.rows[place] for place in places)
        if places:
            top, settings = zip(*(self._logprobs[row] for row in ticket.scored_rows), strict=True)
            tokens = ticket.tokens[places]
            scored = drawn_from(logits[places], tokens, settings) if self._processed_logprobs else untouched
            ticket.scores = score_tensors(scored, tokens, top)


def _forbidden(masks: memoryview, logits: Tensor, number: int) -> Tensor:
    """The ids that a mask of those of a row does not allow, bool [vocab], where the logits are."""
    width = -(-logits.shape[1] // 32) * 4
    packed = torch.frombuffer(masks[number * width : (number + 1) * width], dtype=torch.uint8).int()
    eights = _FORBIDDEN.index_select(0, packed).view(torch.bool)
    return eights[: logits.shape[1]].to(logits.device)
