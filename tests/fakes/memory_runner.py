"""A runner whose "model" is a hash of everything it can see through the block tables.

It keeps a KV store of facts (which token, at which position) instead of numbers, reads them back through the tables a
plan gave it, and derives each next token from them. Wrong tables, lost blocks, stale slots or a forgotten
release therefore change the text or raise, and a correct control plane always yields `expected_token`. A recurrent
group's state is the very tokens that went into it, so a state reused at the wrong length, a copy that was missed and
a state that was given away too early raise.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nanoserve.ports.driven import Drafter
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.grammar import MaskBlock, Masks, new_block
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Uncached, per_group
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.step import (
    SINK_BLOCK,
    AdmittedRow,
    BlockCopy,
    Chunk,
    SlotCopy,
    StepPlan,
    StepResult,
    TableUpdate,
    TokenLogprobs,
    accepted_length,
)


class BrokenPlanError(AssertionError):
    """A plan asked for something that no correct scheduler asks for."""


@attrs.define
class Row:
    """A row on the device; `owner` is for a runner that knows more of it."""

    token_ids: list[int]
    num_prompt_tokens: int
    num_computed: int
    tables: list[list[int]]
    seed: int
    prompt_logprobs: bool
    logprobs: bool
    pooling: Pooling | None
    max_length: int
    takes_drafts: bool
    seen: list[int] = attrs.field(factory=list)
    owner: Any = None


def expected_vector(token_ids: Sequence[int], pooling: Pooling) -> tuple[float, ...]:
    """What a prompt is made into: a function of the tokens that count."""
    return (float(len(token_ids)), *map(float, token_ids if pooling.reads_all else token_ids[-1:]))


def expected_token(
    token_ids: Sequence[int],
    seed: int,
    vocab_size: int,
    window: int | None = None,
    mask: bytes | None = None,
) -> int:
    """The token that follows: a function of the seed and of the tokens that the narrowest window still sees.

    Where a mask does not allow it, the next one that is allowed comes in its place.
    """
    position = len(token_ids) - 1
    first = 0 if window is None else max(0, position - window + 1)
    token = hash((seed, position, tuple(token_ids[first:]))) % vocab_size
    while mask is not None and not mask[token >> 3] >> (token & 7) & 1:
        token = (token + 1) % vocab_size
    return token


class MemoryRunner:
    """Checks every plan while it computes; `fail_at` maps step numbers to errors that the step raises.

    `submit` computes nothing: steps are computed in order when collected, as a device would, so that two plans can be
    in flight while the second one's newest tokens do not exist yet.

    Attributes:
        queued: the steps that are not computed yet; a test that clears it has the device forget them.
        rows, store, states, slots: what is on the device and in host memory; a test may spoil it.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        vocab_size: int,
        fail_at: dict[int, StepFailedError] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._drafter = drafter
        self.widths: list[tuple[int, tuple[int, ...]]] = []
        self.num_steps = 0
        self.num_tokens = 0
        self._groups = tuple(groups)
        self._num_blocks = per_group(num_blocks, len(self._groups))
        self.block_size = block_size
        self._vocab_size = vocab_size
        self.fail_at = fail_at or {}
        self.rows: dict[int, Row] = {}
        recurrent = [isinstance(group.kind, Recurrent) for group in self._groups]
        self._recurrent = [group for group, each in enumerate(recurrent) if each]
        self._keeps_nothing = any(isinstance(group.kind, Uncached) for group in self._groups)
        self._paged = [group for group, each in enumerate(recurrent) if not each and not self._keeps_nothing]
        self.store: list[dict[tuple[int, int], Any]] = [{} for _ in groups]
        self.states: list[dict[int, list[Any]]] = [{} for _ in groups]
        self.slots: dict[int, dict[int, Any]] = {}
        self.queued: deque[StepPlan] = deque()
        self._masks: dict[int, Mapping[int, bytes]] = {}

    def submit(self, plan: StepPlan, /) -> StepPlan:
        """Queue a step."""
        self.queued.append(plan)
        return plan

    def mask_block(self, count: int, /) -> MaskBlock:
        """As in `LateDrawing`."""
        return new_block(self._vocab_size, count)

    def draw(self, ticket: StepPlan, masks: Masks, /) -> None:
        """Remember what may be drawn, until the step is computed."""
        if not self.queued or self.queued[-1] is not ticket or ticket.step in self._masks:
            raise BrokenPlanError("only the newest step is drawn, and once")
        if not ticket.masked or not set(masks) <= set(ticket.masked):
            raise BrokenPlanError("there are masks for rows that need none")
        self._masks[ticket.step] = {row: bytes(mask) for row, mask in masks.items()}

    def collect(self, ticket: StepPlan, /) -> StepResult:
        """Compute the steps up to this one; any that were dropped before it are computed too, as on a device."""
        if ticket.masked and ticket.step not in self._masks:
            raise BrokenPlanError("a step is collected that was never drawn")
        while self.queued:
            plan = self.queued.popleft()
            result = self.compute(plan)
            if plan is ticket:
                return result
        raise BrokenPlanError("a ticket was collected twice or never submitted")

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()

    def compute(self, plan: StepPlan) -> StepResult:
        """Compute a step, as a device does."""
        self.num_steps += 1
        self.num_tokens += plan.num_tokens
        for released in plan.released:
            self.rows.pop(released, None)
        for admitted in plan.admitted:
            self.admit(admitted)
        for update in plan.table_updates:
            self._update(update)
        if plan.step in self.fail_at:
            raise self.fail_at[plan.step]
        self._copy(plan.copies)
        result = StepResult(token_ids=[], copied=self._carry(plan))
        is_drawn = not plan.masked or plan.step in self._masks
        masks = self._masks.pop(plan.step, {})
        for chunk in plan.chunks:
            self._rewind(chunk)
            self._forward(chunk.row, chunk.start, chunk.length, result)
        if plan.width > 1 or any(each.unverified for each in plan.chunks):
            return self._compute_wide(plan, result, masks)
        for index in plan.decoding:
            self._go_on_narrowly(index, result)
        for chunk in plan.chunks:
            self._read_back(chunk)
        for index in plan.pooling_rows:
            self._pool(index, result)
        for index in plan.sampling_rows if is_drawn else ():
            if index in plan.masked and index not in masks:
                self.rows[index].num_computed -= 1
                result.token_ids.append(0)
            else:
                self.draw_token(index, masks.get(index), result)
        return result

    def _rewind(self, chunk: Chunk) -> None:
        """What a row has decoded since its newest verified token is computed again."""
        if not chunk.unverified:
            return
        row = self.rows[chunk.row]
        if chunk.start + chunk.length != len(row.token_ids) or chunk.unverified >= chunk.length:
            raise BrokenPlanError(f"row {chunk.row} verifies other tokens than it has decoded")
        row.num_computed = chunk.start
        del row.seen[chunk.start :]

    def verify(self, chunk: Chunk, mask: bytes | None, result: StepResult) -> int:
        """All that the row has decoded is right, and one more is drawn; returns how many tokens these are."""
        row = self.rows[chunk.row]
        decoded = row.token_ids[len(row.token_ids) - chunk.unverified :]
        result.token_ids.extend(decoded)
        self.draw_token(chunk.row, mask, result)
        if row.logprobs:
            result.logprobs[chunk.row] = tuple(map(score, row.token_ids[-1 - chunk.unverified :]))
        return chunk.unverified + 1

    def _go_on_narrowly(self, index: int, result: StepResult) -> None:
        row = self.rows[index]
        if len(row.token_ids) >= row.max_length:
            raise BrokenPlanError(f"row {index} is at its end in a narrow step")
        self._forward(index, row.num_computed, 1, result)

    def _compute_wide(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        """Draft, compute and compare, row by row."""
        given = {each.row: each.token_ids for each in plan.drafts}
        if not set(given) <= set(plan.masked) & set(plan.decoding):
            raise BrokenPlanError("a plan has drafts for rows that it must not")
        missing = set(plan.masked) - set(masks)
        for chunk in plan.chunks:
            self._read_back(chunk)
        for index in plan.pooling_rows:
            self._pool(index, result)
        counts, drafted = [], []
        for chunk in plan.chunks:
            if chunk.samples and chunk.row in missing:
                self.rows[chunk.row].num_computed -= 1
                counts.append(0)
                drafted.append(0)
            elif chunk.samples:
                counts.append(self.verify(chunk, masks.get(chunk.row), result))
                drafted.append(chunk.unverified)
        for index in plan.decoding:
            row = self.rows[index]
            drafts = given.get(index, ()) if index in plan.masked else None
            every = masks.get(index) if index in plan.masked else None
            if every is not None and len(every) != (1 + len(drafts or ())) * (-(-self._vocab_size // 32) * 4):
                raise BrokenPlanError(f"row {index} has masks for other drafts than it has")
            gained, had = self._go_on_widely(row, plan.width, drafts, every)
            if index in missing:
                del row.token_ids[len(row.token_ids) - len(gained) :]
                row.num_computed -= len(gained)
                gained = []
            for group in self._recurrent:
                self._go_on(group, row, row.num_computed - len(gained), len(gained))
            result.token_ids.extend(gained)
            counts.append(len(gained))
            drafted.append(had)
            if row.logprobs:
                result.logprobs[index] = tuple(map(score, gained))
        self.widths.append((plan.width, tuple(counts[len(counts) - len(plan.decoding) :])))
        return attrs.evolve(result, counts=tuple(counts), drafts=tuple(drafted))

    def _go_on_widely(
        self, row: Row, width: int, drafts: Sequence[int] | None, masks: bytes | None
    ) -> tuple[list[int], int]:
        """The tokens that a row gains, and how many drafts it had. What is not reserved for it is not there to be written to."""
        length = len(row.token_ids)
        if length == row.max_length:
            return [], 0
        if drafts is None:
            drafts = ()
            if self._drafter is not None and row.takes_drafts:
                drafts = self._drafter.propose(tuple(row.token_ids), width - 1)
        if len(drafts) >= width:
            raise BrokenPlanError("a row has more drafts than its step is wide")
        drafts = drafts[: row.max_length - length - 1]
        guessed = attrs.evolve(row, token_ids=[*row.token_ids, *drafts])
        for position in range(row.num_computed, len(guessed.token_ids)):
            self._write(guessed, position)
        drawn = []
        for place in range(len(drafts) + 1):
            seen = attrs.evolve(
                guessed, token_ids=guessed.token_ids[: length + place], num_computed=length + place
            )
            size = -(-self._vocab_size // 32) * 4
            mask = None if masks is None else masks[place * size : (place + 1) * size]
            drawn.append(self.next_token(seen, mask))
        gained = drawn[: accepted_length(drafts, drawn)]
        row.num_computed += len(gained)
        row.token_ids += gained
        return gained, len(drafts)

    def admit(self, admitted: AdmittedRow) -> None:
        """A sequence takes a row."""
        if admitted.row in self.rows:
            raise BrokenPlanError(f"row {admitted.row} is admitted while it is held")
        self.rows[admitted.row] = Row(
            token_ids=list(admitted.token_ids),
            num_prompt_tokens=admitted.num_prompt_tokens,
            num_computed=admitted.num_computed_tokens,
            tables=[list(table) for table in admitted.block_tables],
            seed=admitted.sampling.seed,
            prompt_logprobs=admitted.sampling.prompt_logprobs is not None,
            logprobs=admitted.sampling.logprobs is not None,
            pooling=admitted.pooling,
            max_length=admitted.max_length,
            takes_drafts=admitted.sampling.drafts,
        )

    def _update(self, update: TableUpdate) -> None:
        row = self.rows[update.row]
        table = row.tables[update.group]
        if update.start > len(table):
            raise BrokenPlanError(f"row {update.row}: the table grows with a hole")
        if (update.start + len(update.block_ids) - 1) * self.block_size >= row.max_length - 1:
            raise BrokenPlanError(f"row {update.row}: a block lies behind all that it may compute")
        table[update.start : update.start + len(update.block_ids)] = update.block_ids

    def _copy(self, copies: tuple[BlockCopy, ...]) -> None:
        """One after the other, which must be the same as all at once."""
        sources = {(each.group, each.source) for each in copies}
        targets = {(each.group, each.target) for each in copies}
        if len(targets) < len(copies) or targets & sources:
            raise BrokenPlanError(f"copies of one step depend on each other: {copies}")
        for group, source, target in [(each.group, each.source, each.target) for each in copies]:
            if group in self._recurrent:
                if source not in self.states[group]:
                    raise BrokenPlanError(f"state {source} is copied and was never written")
                self.states[group][target] = list(self.states[group][source])
            else:
                found = {place: fact for (block, place), fact in self.store[group].items() if block == source}
                self.store[group].update({(target, place): fact for place, fact in found.items()})

    def _carry(self, plan: StepPlan) -> tuple[int, ...]:
        """Do the copies to host memory and from it; the steps whose copies are done."""
        for each in plan.stores:
            self._store_block(each)
        for each in plan.loads:
            self._load_block(each)
        return (plan.step,) if plan.stores or plan.loads else ()

    def _store_block(self, copy: SlotCopy) -> None:
        (facts,) = self.store
        self.slots[copy.slot] = {
            place: facts[copy.block, place]
            for place in range(self.block_size)
            if (copy.block, place) in facts
        }

    def _load_block(self, copy: SlotCopy) -> None:
        (facts,) = self.store
        if copy.slot not in self.slots:
            raise BrokenPlanError(f"slot {copy.slot} is loaded and was never stored")
        for place in range(self.block_size):
            facts.pop((copy.block, place), None)
        facts.update({(copy.block, place): fact for place, fact in self.slots[copy.slot].items()})

    def _forward(self, index: int, start: int, length: int, result: StepResult) -> None:
        row = self.rows[index]
        if start != row.num_computed or start + length > len(row.token_ids) or length < 1:
            raise BrokenPlanError(f"row {index}: tokens {start}+{length} do not follow {row.num_computed}")
        if self._keeps_nothing and (start or length < len(row.token_ids) or any(row.tables)):
            raise BrokenPlanError(f"row {index}: tokens {start}+{length} are not the whole, or have blocks")
        for group in self._recurrent:
            self._go_on(group, row, start, length)
        for position in range(start, start + length):
            self._write(row, position)
        row.num_computed = start + length
        row.seen += row.token_ids[start : start + length]
        if row.prompt_logprobs:
            last = min(start + length + 1, row.num_prompt_tokens)
            scores = {position: score(row.token_ids[position]) for position in range(max(start, 1), last)}
            if scores:
                result.prompt_logprobs.setdefault(index, {}).update(scores)

    def _read_back(self, chunk: Chunk) -> None:
        """The first and the last token of a chunk attend, once the whole step is written, as within each layer of a model."""
        for group in self._paged:
            for position in (chunk.start, chunk.start + chunk.length - 1):
                self._check_readable(group, self.rows[chunk.row], position)

    def draw_token(self, index: int, mask: bytes | None, result: StepResult) -> None:
        """A row all of whose tokens are computed yields the next one."""
        row = self.rows[index]
        if row.num_computed != len(row.token_ids):
            raise BrokenPlanError(f"row {index} samples before its last token is computed")
        token = self.next_token(row, mask)
        row.token_ids.append(token)
        result.token_ids.append(token)
        if row.logprobs:
            result.logprobs[index] = (score(token),)

    def _pool(self, index: int, result: StepResult) -> None:
        """Make a row's vector of the states that its own chunks have computed."""
        row = self.rows[index]
        if row.pooling is None or row.num_computed != len(row.token_ids):
            raise BrokenPlanError(f"row {index} pools before its last token is computed, or unasked")
        for group in self._paged:
            self._check_readable(group, row, row.num_computed - 1)
        states = row.seen if row.pooling.reads_all else row.seen[-1:]
        result.pooled[index] = (float(row.num_computed), *map(float, states))

    def _write(self, row: Row, position: int) -> None:
        for group in self._paged:
            block = row.tables[group][position // self.block_size]
            if not SINK_BLOCK < block <= self._num_blocks[group]:
                raise BrokenPlanError(f"position {position} is written to block {block}")
            fact = self.fact(row, position, self._before(group, row, position))
            self.store[group][block, position % self.block_size] = fact

    def fact(self, row: Row, position: int, _before: Any, /) -> Any:
        """What is written for a token, behind what is there for the one before it."""
        return position, row.token_ids[position]

    def may_read(self, row: Row, position: int, found: Any, /) -> bool:
        """Whether a row that needs its token at `position` may read what it has found for it."""
        return bool(found == (position, row.token_ids[position]))

    def _before(self, group: int, row: Row, position: int) -> Any:
        block = row.tables[group][(position - 1) // self.block_size]
        return self.store[group].get((block, (position - 1) % self.block_size))

    def _go_on(self, group: int, row: Row, start: int, length: int) -> None:
        """The row's state takes in `length` tokens; before the first one it is empty, whatever is in the slot."""
        (live,) = row.tables[group]
        if not SINK_BLOCK < live <= self._num_blocks[group]:
            raise BrokenPlanError(f"a state lives in slot {live}")
        seen = self.states[group].get(live) if start else []
        if (
            seen is None
            or len(seen) != start
            or not all(itertools.starmap(functools.partial(self.may_read, row), enumerate(seen)))
        ):
            raise BrokenPlanError(f"a state has seen {seen} and not {row.token_ids[:start]}")
        state = list(seen)
        for position in range(start, start + length):
            state.append(self.fact(row, position, state[-1] if state else None))
        self.states[group][live] = state

    def next_token(self, row: Row, mask: bytes | None) -> int:
        """What follows the tokens of a row, all of which it can read."""
        for group in self._paged:
            self._check_readable(group, row, row.num_computed - 1)
        return expected_token(row.token_ids, row.seed, self._vocab_size, self._narrowest_window(), mask)

    def _narrowest_window(self) -> int | None:
        return min((group.window for group in self._groups if group.window is not None), default=None)

    def _check_readable(self, group: int, row: Row, position: int) -> None:
        window = self._groups[group].window
        first = 0 if window is None else max(0, position - window + 1)
        for each in range(first, position + 1):
            block = row.tables[group][each // self.block_size]
            found = self.store[group].get((block, each % self.block_size))
            if not self.may_read(row, each, found):
                message = f"position {each} reads {found} where token {row.token_ids[each]} was written"
                raise BrokenPlanError(message)


def score(token_id: int) -> TokenLogprobs:
    """What is reported of a token that was asked for."""
    return TokenLogprobs(token_id, -float(token_id), 1)
