"""A runner that knows for whom, by which numbers and in which kind of step each thing was computed, and lets nobody else read it."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from typing import Any

import attrs

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.lora import LoraFacts
from nanoserve.ports.step import AdmittedRow, Chunk, StepPlan, StepResult, accepted_length
from tests.fakes.counting_store import CountingStore
from tests.fakes.memory_runner import BrokenPlanError, Row, score
from tests.unit.domain.late_copies import LateRunner

NO_NUMBERS = b"?"
"""What a slot has while it is filled."""


def seed_with(lora: bytes, seed: int) -> int:
    """The seed of a row that has an adapter: another answer."""
    return seed ^ zlib.crc32(lora)


@attrs.frozen
class Owner:
    """What a row's blocks may be read for: its chain of names, its adapter, and weights from `since` on."""

    chain: tuple[object, ...]
    lora: bytes
    slot: int
    since: int
    row: int
    is_deterministic: bool


@attrs.frozen
class Fact:
    """What was written for a token: `pure` if by invariant steps all along, `broken` if from numbers that are not finite."""

    position: int
    token: int
    chain: tuple[object, ...]
    lora: bytes
    version: int
    pure: bool
    broken: bool


class StrictRunner(LateRunner):
    """Checks everything that a memory runner does, and what stands behind a name.

    Attributes:
        scheduler: whose plans it gets.
        breaks: in how many steps, from the next one on, a row's logits are not finite; `guilty` are the requests of such rows.
        chunks: how often each block of a prompt was computed in chunks, by its chain, adapter, weights and tokens.
    """

    scheduler: Scheduler

    def __init__(self, *args: Any, dice: random.Random, **kwargs: Any) -> None:
        super().__init__(*args, dice=dice, **kwargs)
        self.breaks, self.version = 0, 0
        self.guilty: set[str] = set()
        self.filled: dict[int, bytes] = {0: b""}
        self.held: Counter[bytes] = Counter()
        self.chunks: Counter[object] = Counter()
        self._seated: dict[int, dict[int, Sequence]] = {}
        self._tentative: dict[int, set[int]] = {}
        self._plan = StepPlan(step=0)
        self._ticket: StepPlan | None = None
        self._chosen: set[int] = set()

    def keep(self, plan: StepPlan) -> None:
        flight = self.scheduler.flights[-1]
        assert flight.plan is plan
        running = {each.row: each for each in self.scheduler.table.rows.running if each.row is not None}
        self._seated[plan.step] = running
        self._tentative[plan.step] = {
            row
            for row, each in zip(plan.decoding, flight.decoding.sequences, strict=True)
            if each.is_tentative
        }
        for load in plan.lora_loads:
            if not self.held[load.digest]:
                self.broken = BrokenPlanError("an adapter is loaded whose numbers are gone")
            self.filled[load.slot] = NO_NUMBERS
        super().keep(plan)

    def collect(self, ticket: StepPlan, /) -> StepResult:
        self._ticket = ticket
        result = super().collect(ticket)
        broken = tuple(row for row in (*ticket.sampling_rows, *ticket.pooling_rows) if self._is_broken(row))
        return attrs.evolve(result, broken=broken)

    def drain(self) -> None:
        """Compute what is queued and counts no more."""
        self._ticket = None
        while self.queued:
            self.compute(self.queued.popleft())

    def forget_all(self) -> None:
        """The memory of the cache is gone."""
        self.drain()
        for group in range(len(self.store)):
            self.store[group].clear()
            self.states[group].clear()

    def compute(self, plan: StepPlan) -> StepResult:
        self._plan, self._chosen = plan, set()
        yielding = [*plan.sampling_rows, *plan.pooling_rows]
        if self.breaks and yielding and plan is self._ticket:
            self.breaks -= 1
            self._chosen = {self._dice.choice(yielding)}
            self.guilty |= {
                self._seated[plan.step][row].request.request_id
                for row in self._chosen
                if row in self._seated[plan.step]
            }
        for load in plan.lora_loads:
            self.filled[load.slot] = load.digest
        result = super().compute(plan)
        for chunk in plan.chunks if plan is self._ticket else ():
            self._check_kind(chunk.row)
            self._count(chunk)
        for row in plan.decoding if plan is self._ticket else ():
            if row not in self._tentative[plan.step]:
                self._check_kind(row)
        return result

    def admit(self, admitted: AdmittedRow) -> None:
        super().admit(admitted)
        sequence = self._seated[self._plan.step][admitted.row]
        request, caches = sequence.request, self.scheduler.limits.prefix_caching
        chain = (request.cache_salt if caches else request.request_id, sequence.is_deterministic)
        slot, asks = admitted.lora_slot, sequence.is_deterministic
        owner = Owner(chain, sequence.lora, slot, self.version, admitted.row, asks)
        self.rows[admitted.row].owner = owner

    def fact(self, row: Row, position: int, before: Any, /) -> Any:
        owner, former = row.owner, before if position else None
        lora = self.filled[owner.slot]
        if lora != owner.lora and self._plan is self._ticket:
            raise BrokenPlanError(
                f"row {owner.row} is to have adapter {owner.lora!r}, and its slot has {lora!r}"
            )
        pure = self._plan.invariant and (not position or getattr(former, "pure", False))
        broken = owner.row in self._chosen or getattr(former, "broken", False)
        return Fact(position, row.token_ids[position], owner.chain, lora, self.version, pure, broken)

    def may_read(self, row: Row, position: int, found: Any, /) -> bool:
        owner = row.owner
        if not isinstance(found, Fact) or (found.position, found.token) != (
            position,
            row.token_ids[position],
        ):
            return False
        return self._plan is not self._ticket or (
            (found.chain, found.lora) == (owner.chain, owner.lora) and found.version >= owner.since
        )

    def _newest(self, row: Row) -> list[Any]:
        """What is written for the newest token that is computed, in all groups."""
        at = row.num_computed - 1
        if at < 0:
            return []
        facts = [self.states[group][row.tables[group][0]][-1] for group in self._recurrent]
        for group in self._paged:
            block = row.tables[group][at // self.block_size]
            facts.append(self.store[group].get((block, at % self.block_size)))
        return facts

    def _is_broken(self, row: int) -> bool:
        return any(getattr(each, "broken", False) for each in self._newest(self.rows[row]))

    def _check_kind(self, index: int) -> None:
        """What a deterministic row says for certain comes of invariant steps alone."""
        row = self.rows[index]
        if row.owner.is_deterministic and not all(each.pure for each in self._newest(row)):
            raise BrokenPlanError(f"row {index} is deterministic, and was computed by other steps")

    def _count(self, chunk: Chunk) -> None:
        """Blocks of the prompt that the chunk fills, but for the last one, of which a token must be computed in any case."""
        row, size = self.rows[chunk.row], self.block_size
        most = (row.num_prompt_tokens - 1) // size
        for index in range(chunk.start // size, min((chunk.start + chunk.length) // size, most)):
            tokens = tuple(row.token_ids[: (index + 1) * size])
            self.chunks[row.owner.chain, row.owner.lora, self.version, tokens] += (
                not row.prompt_logprobs and row.pooling is None
            )

    def next_token(self, row: Row, mask: bytes | None) -> int:
        return super().next_token(
            attrs.evolve(row, seed=seed_with(self.filled[row.owner.slot], row.seed)), mask
        )

    def draw_token(self, index: int, mask: bytes | None, result: StepResult) -> None:
        """A row that will be verified may say anything before."""
        super().draw_token(index, mask, result)
        is_wrong = (
            index in self._tentative[self._plan.step]
            and not self._plan.invariant
            and self._dice.random() < 0.25
        )
        if is_wrong:
            token = (result.token_ids[-1] + 1) % self._vocab_size
            self.rows[index].token_ids[-1] = result.token_ids[-1] = token

    def verify(self, chunk: Chunk, mask: bytes | None, result: StepResult) -> int:
        row = self.rows[chunk.row]
        if not chunk.unverified:
            return super().verify(chunk, mask, result)
        verified = len(row.token_ids) - chunk.unverified
        decoded, drawn = row.token_ids[verified:], []
        for length in range(verified, len(row.token_ids) + 1):
            seen = attrs.evolve(row, token_ids=row.token_ids[:length], num_computed=length)
            drawn.append(self.next_token(seen, None))
        gained = drawn[: accepted_length(decoded, drawn)]
        row.token_ids[verified:] = gained
        row.num_computed = len(row.token_ids) - 1
        del row.seen[row.num_computed :]
        result.token_ids.extend(gained)
        if row.logprobs:
            result.logprobs[chunk.row] = tuple(map(score, gained))
        return len(gained)


class StrictStore(CountingStore):
    """Weights that are a number, on a device whose memory can be freed."""

    runner: StrictRunner

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def write(self) -> None:
        super().write()
        self.runner.drain()
        self.runner.version += 1
        self.is_lost = False

    def sleep(self, level: int, /) -> None:
        super().sleep(level)
        self.runner.forget_all()
        self.is_lost = level == 2 and self._dice.random() < 0.5


class HeldLoras:
    """Adapters whose folder's name is their numbers, as many as were read and not dropped."""

    def __init__(self) -> None:
        self.held: Counter[bytes] = Counter()

    def read(self, folder: str, /) -> LoraFacts:
        self.held[folder.encode()] += 1
        return LoraFacts(digest=folder.encode(), rank=8)

    def drop(self, digest: bytes, /) -> None:
        assert self.held[digest]
        self.held[digest] -= 1
