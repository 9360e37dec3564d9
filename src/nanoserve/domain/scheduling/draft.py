"""The draft of the next step: deltas that can still be withdrawn."""

from __future__ import annotations

import attrs

from nanoserve.domain.kv.states import PlannedCopy
from nanoserve.domain.scheduling.steps import DecodingRows
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.step import AdmittedRow, Chunk, LoraLoad, RowDrafts, StepPlan, TableUpdate


@attrs.define
class Draft:
    """The deltas gathered so far; what concerns one row can be withdrawn if the row is preempted after all.

    `decodes`: whether rows that decode are computed, too. An invariant one then takes prompts of all.
    `suffices`: whether it is planned if rows decode and nothing else.
    """

    step: int
    width: int = 1
    invariant: bool = False
    drafts: dict[Sequence, tuple[int, ...]] = attrs.field(factory=dict)
    decodes: bool = True
    suffices: bool = True
    chunks: list[tuple[Sequence, Chunk]] = attrs.field(factory=list)
    admitted: list[AdmittedRow] = attrs.field(factory=list)
    table_updates: list[TableUpdate] = attrs.field(factory=list)
    copies: tuple[PlannedCopy, ...] = ()

    def takes(self, sequence: Sequence) -> bool:
        """True if a prompt may be computed in this step."""
        return sequence.is_deterministic is self.invariant or (self.invariant and self.decodes)

    def admit(self, sequence: Sequence, row: int) -> None:
        """Add a sequence that has been given a row."""
        admitted = AdmittedRow(
            row=row,
            token_ids=tuple(sequence.token_ids),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_computed_tokens=sequence.num_scheduled_tokens,
            block_tables=tuple(tuple(table) for table in sequence.block_tables),
            sampling=sequence.sampling,
            max_length=sequence.max_total_tokens,
            lora_slot=sequence.lora_slot,
            routed_experts=sequence.request.routed_experts,
            pooling=sequence.request.pooling,
        )
        self.admitted.append(admitted)

    def compute(self, sequence: Sequence, start: int, end: int) -> Chunk:
        """Compute tokens [start, end) of a sequence that prefills, and what is to be verified behind them; after its last known token the step yields something."""
        assert sequence.row is not None
        is_last, pooled = end == len(sequence.token_ids), sequence.request.pooling is not None
        samples, pools = is_last and not pooled, is_last and pooled
        behind, sequence.num_unverified = sequence.num_unverified, 0
        chunk = Chunk(
            sequence.row, start, end + behind - start, samples=samples, pools=pools, unverified=behind
        )
        self.chunks.append((sequence, chunk))
        sequence.num_scheduled_tokens, sequence.last_step = end + behind, self.step
        return chunk

    def copy(self, copies: list[PlannedCopy]) -> None:
        """Add copies; most steps have none."""
        if copies:
            self.copies = (*self.copies, *copies)

    def withdraw(self, sequence: Sequence) -> list[PlannedCopy]:
        """Forget every delta of a sequence's row; returns the copies that will not be done."""
        row = sequence.row
        self.chunks = [entry for entry in self.chunks if entry[1].row != row]
        self.admitted = [each for each in self.admitted if each.row != row]
        self.table_updates = [update for update in self.table_updates if update.row != row]
        withdrawn = [each for each in self.copies if each.sequence is sequence]
        self.copies = tuple(each for each in self.copies if each.sequence is not sequence)
        return withdrawn

    def seal(
        self,
        released: list[int],
        decoding: DecodingRows,
        masked: tuple[int, ...] = (),
        lora_loads: tuple[LoraLoad, ...] = (),
    ) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=self.step,
            released=tuple(released),
            admitted=tuple(self.admitted),
            table_updates=tuple(self.table_updates),
            chunks=tuple(chunk for _, chunk in self.chunks),
            decoding=decoding.rows,
            width=self.width,
            invariant=self.invariant,
            copies=tuple([each.copy for each in self.copies]) if self.copies else (),
            masked=masked,
            drafts=self._drafts_of(decoding) if self.drafts else (),
            lora_loads=lora_loads,
        )

    def _drafts_of(self, decoding: DecodingRows) -> tuple[RowDrafts, ...]:
        """The rows that still decode: others may have lost theirs since they were drafted."""
        rows = zip(decoding.rows, decoding.sequences, strict=True)
        return tuple([RowDrafts(row, self.drafts[each]) for row, each in rows if self.drafts.get(each)])
