"""A stress run with its step log, and the engine's own books after every record of it."""

from __future__ import annotations

import random
from typing import Any

import attrs

from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.trace import Snapshot, StatusChange, TraceRecord
from tests.unit.domain.faults import Fault
from tests.unit.domain.tokenizers import characters
from tests.unit.domain.world import FULL, World

LETTERS = characters("abcdefghijklmnopqrstuvwx")
NARROW = CacheGroup(layers=(2,), kind=Window(5))
WIDE = CacheGroup(layers=(3,), kind=Window(11))
STATE = CacheGroup(layers=(4,), kind=Recurrent(prompt_interval=6, decode_interval=3))
GROUPS = [(FULL,), (NARROW,), (FULL, NARROW), (NARROW, WIDE), (FULL, STATE)]


@attrs.define
class Run:
    """What was recorded, and the books after each record as the engine itself had them."""

    records: list[TraceRecord] = attrs.field(factory=list)
    books: list[Snapshot] = attrs.field(factory=list)

    def note(self, record: TraceRecord, books: Snapshot) -> None:
        self.records.append(record)
        self.books.append(attrs.evolve(books, at=record.at))


def stress(groups: tuple[CacheGroup, ...], depth: int, seed: int) -> Run:
    """A cramped engine under a hundred requests that share prefixes, are aborted, time out and fail."""
    dice = random.Random(seed)
    world = World(
        groups=groups,
        depth=depth,
        tokenizer=LETTERS,
        vocab_size=24,
        block_size=3,
        num_blocks=14,
        max_num_seqs=4,
        max_num_batched_tokens=9,
        max_model_len=32,
    )
    run, added = Run(), 0
    recorder = world.engine.record(LETTERS)
    run.note(recorder.snapshot(), read_snapshot(world.scheduler, at=0.0))
    while added < 100 or world.engine.has_work:
        if added < 100 and dice.random() < 0.4:
            add_request(world, f"r{added}", dice)
            added += 1
        if dice.random() < 0.2:
            world.engine.abort(f"r{dice.randrange(added + 1)}")
        if dice.random() < 0.05:
            world.runner.fail(dice.choice(list(Fault)))
        if dice.random() < 0.03:
            world.engine.forget_prefixes()
        if dice.random() < 0.03:
            recorder = world.engine.record(LETTERS)
            run.note(StatusChange(0.0, "restarting"), run.books[-1])
            run.note(recorder.snapshot(), read_snapshot(world.scheduler, at=0.0))
        world.turn()
        for turn in recorder.take():
            run.note(turn, read_snapshot(world.scheduler, at=turn.at))
    return run


def add_request(world: World, name: str, dice: random.Random) -> None:
    length = dice.randint(1, 22)
    fields: dict[str, Any] = {"n": dice.choice([1, 1, 1, 3]), "seed": dice.randrange(5)}
    if dice.random() < 0.2:
        fields["deadline"] = world.clock.time + 0.01
    world.add(name, [token % 24 for token in range(length)], max_tokens=dice.randint(1, 9), **fields)
