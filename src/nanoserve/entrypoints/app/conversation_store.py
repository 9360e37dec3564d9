"""Conversations kept for later, of the protocols that let a client continue one by a name; bounded, and each client's own."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs


@attrs.define(eq=False, kw_only=True)
class Record:
    """One answer and the conversation before it.

    Attributes:
        task: what computes it in the background, until that has ended.
        owner: the name of its client; `counted` is its size and `kept_at` when it was kept, all as the store has noted them.
    """

    record_id: str
    task: asyncio.Task[None] | None = None
    owner: str = ""
    counted: int = 0
    kept_at: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Its approximate size in bytes."""
        raise NotImplementedError


RecordT = TypeVar("RecordT", bound=Record)


@attrs.define(eq=False, kw_only=True)
class ConversationStore:
    """At most so many records and bytes over all clients; beyond that, the oldest of the greediest client goes.

    Each goes when it is `lifetime` seconds old by the clock `now`; the names of the latest that have gone so are known. Answers under
    way are never dropped: the service bounds how many of them there are.
    """

    _max_records: int = 4096
    _max_bytes: int = 256 * 2**20
    _lifetime: float = math.inf
    _now: Callable[[], float] = time.monotonic
    _records: dict[str, Record] = attrs.field(init=False, factory=dict)
    _expired: dict[str, str] = attrs.field(init=False, factory=dict)
    _numbers: Counter[str] = attrs.field(init=False, factory=Counter)
    _bytes: Counter[str] = attrs.field(init=False, factory=Counter)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        """The approximate size of all records in bytes."""
        return self._bytes.total()

    def find(self, owner: str, record_id: str, kind: type[RecordT]) -> RecordT | None:
        """A record of this client and of that kind; None for others."""
        self._expire()
        record = self._records.get(record_id)
        return record if isinstance(record, kind) and record.owner == owner else None

    def fate(self, owner: str, record_id: str) -> str:
        """Why `find` has found nothing, for a message."""
        if self._expired.get(record_id) == owner:
            return f"has expired: it was kept for {self._lifetime:g} seconds (--conversation-lifetime)"
        return "does not exist; it may have been deleted, or dropped to make room for others"

    def records_of(self, owner: str, kind: type[RecordT]) -> Iterator[RecordT]:
        """Those of this client and of that kind, the newest first."""
        self._expire()
        every = reversed(self._records.values())
        return (each for each in every if isinstance(each, kind) and each.owner == owner)

    def put(self, owner: str, record: Record) -> None:
        """Keep a record, or note its new size; may drop finished ones."""
        self.drop(owner, record.record_id)
        record.owner, record.counted, record.kept_at = owner, record.num_bytes, self._now()
        self._records[record.record_id] = record
        self._numbers[owner] += 1
        self._bytes[owner] += record.counted
        while (len(self) > self._max_records or self.num_bytes > self._max_bytes) and self._drop_one():
            pass

    def settle(self, owner: str, record: Record) -> None:
        """Note the new size of an answer that has ended; one that was deleted meanwhile stays away."""
        if self._records.get(record.record_id) is record:
            record.kept_at = self._now()  # its time begins only now
            self.put(owner, record)

    def drop(self, owner: str, record_id: str) -> None:
        """Forget a record; conversations that continue it keep their messages."""
        if (record := self.find(owner, record_id, Record)) is not None:
            self._remove(record)

    def _expire(self) -> None:
        oldest = self._now() - self._lifetime
        for record in list(itertools.takewhile(lambda each: each.kept_at <= oldest, self._records.values())):
            if record.task is None:
                self._remove(record)
                self._expired[record.record_id] = record.owner
        for name in list(self._expired)[: -self._max_records]:
            del self._expired[name]

    def _remove(self, record: Record) -> None:
        del self._records[record.record_id]
        self._numbers[record.owner] -= 1
        self._bytes[record.owner] -= record.counted

    def _drop_one(self) -> bool:
        """Drop the oldest finished record of the client that holds the most."""
        held = self._bytes if self.num_bytes > self._max_bytes else self._numbers
        for owner, _ in held.most_common():
            for record in self._records.values():
                if record.owner == owner and record.task is None:
                    self._remove(record)
                    return True
        return False
