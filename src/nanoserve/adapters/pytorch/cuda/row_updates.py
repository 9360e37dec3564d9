"""Applies a plan's deltas to each row's state on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nanoserve.adapters.pytorch.cuda.arena import GIVEN, NO_DRAFT, Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.pooling import RowPooling
from nanoserve.adapters.pytorch.prompt_scoring import PromptScoring
from nanoserve.adapters.pytorch.routed_experts import ExpertRecords
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.adapters.pytorch.sampling.row_settings import device_settings
from nanoserve.kernels.copies.launch import copy_pages_into
from nanoserve.ports.step import SINK_BLOCK, AdmittedRow, BlockCopy, StepPlan, TableUpdate


@attrs.frozen(eq=False)
class RowUpdates:
    """Writes to the arena, the batches, the sampler and the readers of prompts. Applying a plan twice has the effect of applying it once."""

    _arena: Arena
    _batches: Batches
    _sampler: DeviceSampler
    _scoring: PromptScoring = attrs.field(kw_only=True)
    _pooling: RowPooling = attrs.field(kw_only=True)
    _kv: KVStore = attrs.field(kw_only=True)
    _loras: DeviceLoras | None = attrs.field(kw_only=True)
    _records: ExpertRecords | None = attrs.field(kw_only=True)

    def apply(self, plan: StepPlan) -> None:
        """Release, admit, update tables, copy pages; the arena's next flush sends the writes."""
        if self._loras is not None:
            self._loras.await_slots()
            self._loras.apply(plan)
        for row in plan.released:
            self._scoring.release(row)
            if self._pooling.asked:
                self._pooling.release(row)
            self._sampler.release(row)
        for admitted in plan.admitted:
            self._admit(admitted)
        if not {each.row for each in plan.admitted}.isdisjoint([each.row for each in plan.table_updates]):
            self._arena.flush()  # an update writes again what an admission has written
        self._update_tables(plan.table_updates)
        if plan.copies:
            self.copy(plan.copies)
        if plan.masked and plan.width > 1 and not plan.chunks:
            self._give_drafts(plan)
        if self._records is not None:
            self._records.apply(plan)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Queue copies of pages before whatever the step launches; they are no part of a graph."""
        pairs: dict[int, list[int]] = {}
        for each in copies:
            pairs.setdefault(each.group, []).extend((each.source, each.target))
        for group, numbers in pairs.items():
            self._arena.write("copies", numbers, row=group)
        self._arena.flush()
        for group, numbers in pairs.items():
            for pool in self._kv.pools[group]:
                copy_pages_into(pool, self._arena.copies[group, : len(numbers) // 2])

    def copy_sinks(self) -> None:
        """Copy each group's sink upon itself, which changes nothing."""
        self.copy([BlockCopy(group, SINK_BLOCK, SINK_BLOCK) for group in range(len(self._kv.pools))])

    def _give_drafts(self, plan: StepPlan) -> None:
        """Write those of masked rows behind their ends; no step is in flight."""
        given = {each.row: each.token_ids for each in plan.drafts}
        for row in plan.masked:
            self._arena.write("takes_drafts", (GIVEN,), row=row)
            tokens = (*given.get(row, ()), *(NO_DRAFT,) * plan.width)[: plan.width - 1]
            self._arena.write("tokens", tokens, row=row, column=self._batches.length(row))

    def _admit(self, admitted: AdmittedRow) -> None:
        row, arena, length = admitted.row, self._arena, len(admitted.token_ids)
        self._sampler.admit(admitted)
        self._scoring.release(row)
        self._scoring.admit(admitted)
        if self._pooling.asked or admitted.pooling is not None:
            self._pooling.admit(admitted)
        self._batches.set_length(row, length)
        arena.write("tokens", admitted.token_ids, row=row)
        arena.write("lengths", (length,), row=row)
        arena.write("num_prompt_tokens", (admitted.num_prompt_tokens,), row=row)
        if arena.sizes.max_width > 1:
            arena.write("limits", (admitted.max_length,), row=row)
            arena.write("takes_drafts", (int(admitted.sampling.drafts),), row=row)
        arena.write_settings(device_settings(admitted.sampling, self._sampler.vocab_size), row)
        for group, block_ids in enumerate(admitted.block_tables):
            if block_ids:
                arena.write_table(group, row, 0, block_ids)

    def _update_tables(self, updates: tuple[TableUpdate, ...]) -> None:
        """Write them; an entry that is exchanged twice in one plan keeps the later block."""
        runs = {(update.group, update.row, update.start): update.block_ids for update in updates}
        for (group, row, start), block_ids in runs.items():
            self._arena.write_table(group, row, start, block_ids)
