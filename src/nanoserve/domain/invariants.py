"""The invariants of the control plane, checked between steps. A leak never changes output, so only this shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.step import SINK_BLOCK


class InvariantError(AssertionError):
    """An invariant is broken: a bug in the control plane."""


def audit(scheduler: Scheduler) -> None:
    """Raise `InvariantError` or `BlockAccountingError` unless all counts agree."""
    alive = scheduler.table.alive
    _audit_phases(scheduler, alive)
    _audit_rows(scheduler)
    _audit_blocks(scheduler)
    _audit_states(scheduler)
    _audit_ledger(scheduler, alive)
    _audit_isolation(scheduler)
    wrong = scheduler.table.loras.audit(scheduler.table.rows.running, alive)
    _require(not wrong, wrong)
    for sequence in scheduler.table.rows.running:
        _audit_running(scheduler, sequence)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def _audit_phases(scheduler: Scheduler, alive: list[Sequence]) -> None:
    running = {seq for seq in alive if seq.phase is Phase.RUNNING}
    _require(running == set(scheduler.table.rows.running), "the running set and the phases disagree")
    for sequence in alive:
        if sequence.phase is not Phase.RUNNING:
            _require(
                sequence.row is None and not sequence.block_tables and not sequence.snapshots,
                "a sequence at rest holds a row or blocks",
            )


def _audit_rows(scheduler: Scheduler) -> None:
    taken = [sequence.row for sequence in scheduler.table.rows.running if sequence.row is not None]
    _require(len(taken) == len(scheduler.table.rows.running), "a running sequence has no row")
    _require(
        sorted([*taken, *scheduler.table.rows.free]) == list(range(scheduler.limits.max_num_seqs)),
        "rows are not conserved",
    )


def _audit_blocks(scheduler: Scheduler) -> None:
    for group, pool in enumerate(scheduler.cache.allocators):
        pool.audit(Counter(holders(scheduler, group)))
    steps = {step for pool in scheduler.cache.allocators for step in pool.promised.values()}
    in_flight = {flight.plan.step for flight in scheduler.flights}
    _require(steps <= in_flight, "a name is promised for a step that is not in flight")
    if scheduler.cache.tiers is not None:
        scheduler.cache.tiers.audit()


def _audit_states(scheduler: Scheduler) -> None:
    running = scheduler.table.rows.running
    lives = Counter((group, live) for each in running for group, live, _ in scheduler.cache.states.of(each))
    _require(all(count == 1 for count in lives.values()), "a state is the live one of two rows")
    for group, live in lives:
        _require(live not in scheduler.cache.allocators[group].findable, "a live state can be found")
        _require(live != SINK_BLOCK, "a live state is in the sink")


def _audit_ledger(scheduler: Scheduler, alive: list[Sequence]) -> None:
    finished = sum(scheduler.counters.finished.values())
    _require(
        scheduler.counters.accepted == finished + len(alive), "accepted is not finished + running + waiting"
    )
    waiting = [seq for seq in alive if seq.phase is not Phase.RUNNING]
    _require(len(waiting) == len(scheduler.table.waiting), "the queue has lost or invented a sequence")


def _audit_isolation(scheduler: Scheduler) -> None:
    if scheduler.suspects:
        first = scheduler.suspects.first
        _require(first.phase is not Phase.FINISHED, "a finished sequence is on trial")
        _require(set(scheduler.table.rows.running) <= {first}, "a sequence runs beside the one on trial")
        beside = bool(scheduler.table.rows.running) and len(scheduler.flights) > 1
        _require(not beside, "something is in flight beside a trial")


def _audit_running(scheduler: Scheduler, sequence: Sequence) -> None:
    decoding, longest = scheduler.table.decoding, sequence.max_total_tokens
    most = decoding.num_planned(sequence)
    planned = min(most, longest - 1)
    size = scheduler.limits.block_size
    recurrent = {group for group, _, _ in scheduler.cache.states.of(sequence)}
    for group, table in enumerate(sequence.block_tables):
        if group in recurrent:
            _require(len(table) == 1, "a row has not exactly one live state")
        elif scheduler.cache.keeps_nothing:
            _require(not table, "a block is held of a sequence of which nothing is kept")
        else:
            _require(len(table) * size >= planned, "a planned token has no slot")
    _require(most < longest or not decoding.is_exact, "a token is planned beyond the sequence's end")
    _require(len(sequence.token_ids) < longest, "a sequence outlived its length")
    _require(
        sequence.num_shared_blocks * size <= len(sequence.token_ids), "a block is shared before it is full"
    )


def holders(scheduler: Scheduler, group: int) -> Iterator[int]:
    """The held blocks or states of a cache group, once for each reference."""
    for sequence in scheduler.table.rows.running:
        yield from (block for block in sequence.block_tables[group] if block != SINK_BLOCK)
        if group in sequence.snapshots:
            yield sequence.snapshots[group]
    if scheduler.cache.tiers is not None:
        yield from scheduler.cache.tiers.holders()
    for each in (each for flight in scheduler.flights for each in flight.copies if each.copy.group == group):
        yield each.copy.source
        if each.length is not None:
            yield each.copy.target
