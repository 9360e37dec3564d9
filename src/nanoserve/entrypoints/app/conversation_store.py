"""Conversations kept for later, of the protocols that let a client continue one by a name; bounded, and each client's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import attrs

MAX_RECORDS = 4096
MAX_BYTES = 256 * 2**20


@attrs.define(eq=False, kw_only=True)
class Record:
    """One answer and the conversation before it.

    Attributes:
        record_id: the name by which a client continues it.
        task: what computes it in the background, until that has ended.
        owner: the name of its client; `counted` is its size, both as the store has noted them.
    """

    record_id: str
    task: asyncio.Task[None] | None = None
    owner: str = ""
    counted: int = 0

    @property
    def num_bytes(self) -> int:
        """About what it holds."""
        raise NotImplementedError


RecordT = TypeVar("RecordT", bound=Record)


class ConversationStore:
    """At most so many records and bytes over all clients; beyond that, the oldest of the greediest client goes.

    Answers under way are never dropped: the service bounds how many of them there are.
    """

    def __init__(self, *, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: dict[str, Record] = {}
        self._numbers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        """About what all of them hold."""
        return self._bytes.total()

    def find(self, owner: str, record_id: str, kind: type[RecordT]) -> RecordT | None:
        """A record of this client and of that kind; None for others."""
        record = self._records.get(record_id)
        return record if isinstance(record, kind) and record.owner == owner else None

    def records_of(self, owner: str, kind: type[RecordT]) -> Iterator[RecordT]:
        """Those of this client and of that kind, the newest first."""
        every = reversed(self._records.values())
        return (each for each in every if isinstance(each, kind) and each.owner == owner)

    def put(self, owner: str, record: Record) -> None:
        """Keep a record, or note its new size; may drop finished ones."""
        self.drop(owner, record.record_id)
        record.owner, record.counted = owner, record.num_bytes
        self._records[record.record_id] = record
        self._numbers[owner] += 1
        self._bytes[owner] += record.counted
        while len(self) > self._max_records or self.num_bytes > self._max_bytes:
            if not self._drop_one():
                break

    def settle(self, owner: str, record: Record) -> None:
        """Note the new size of an answer that has ended; one that was deleted meanwhile stays away."""
        if self.find(owner, record.record_id, Record) is record:
            self.put(owner, record)

    def drop(self, owner: str, record_id: str) -> None:
        """Forget a record; conversations that continue it keep what was said."""
        record = self.find(owner, record_id, Record)
        if record is not None:
            del self._records[record_id]
            self._numbers[owner] -= 1
            self._bytes[owner] -= record.counted

    def _drop_one(self) -> bool:
        """Drop the oldest finished record of the client that holds the most."""
        held = self._bytes if self.num_bytes > self._max_bytes else self._numbers
        for owner, _ in held.most_common():
            for record in self._records.values():
                if record.owner == owner and record.task is None:
                    self.drop(owner, record.record_id)
                    return True
        return False
