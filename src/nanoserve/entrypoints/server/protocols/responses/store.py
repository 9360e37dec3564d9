"""Responses kept for later: to be fetched, cancelled, deleted and continued; bounded, and each client's own."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import attrs
import msgspec

from nanoserve.entrypoints.server.protocols.responses.answer import (
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseObject,
)
from nanoserve.entrypoints.server.protocols.responses.items import Item, texts_of

MAX_RESPONSES = 4096
MAX_BYTES = 256 * 2**20
_PER_ITEM = 400
"""Bytes of the objects around a message's text, about."""


@attrs.define(eq=False)
class History:
    """What was said up to a moment.

    Attributes:
        items: oldest first. They are shared with the conversations that continue this one.
        num_bytes: about what it holds, shared parts included: an over-estimate keeps the bound.
    """

    items: tuple[Item, ...] = ()
    num_bytes: int = 0

    def with_items(self, items: Sequence[Item]) -> History:
        """The conversation and what was said next."""
        size = sum(_PER_ITEM + sys.getsizeof(text) for item in items for text in texts_of(item))
        return History((*self.items, *items), self.num_bytes + size)


@attrs.define(eq=False)
class StoredResponse:
    """One response, finished or under way.

    Attributes:
        answer: the response object as JSON.
        asked: the conversation that it answers; `said` is what it added, without log-probabilities.
        task: what computes it in the background, until that has ended.
        owner: the name of its client; `counted` is its size, both as the store has noted them.
    """

    response_id: str
    background: bool
    status: str
    answer: bytes
    asked: History
    said: tuple[Item, ...] = ()
    task: asyncio.Task[None] | None = None
    owner: str = ""
    counted: int = 0

    @classmethod
    def of(cls, response: ResponseObject, asked: History) -> StoredResponse:
        """A record of a response as it stands."""
        record = cls(response.id, response.background, response.status, b"", asked)
        record.update(response)
        return record

    def update(self, response: ResponseObject) -> None:
        """Take over a newer state of the response."""
        self.status = response.status
        self.answer = msgspec.json.encode(response)
        self.said = tuple(_without_logprobs(item) for item in response.output)

    async def cancel(self) -> None:
        """Stop computing it in the background; returns when that has ended, and at once where it already had."""
        if (task := self.task) is not None:
            await asyncio.sleep(0)  # a task that is cancelled before it has begun cannot settle its record
            task.cancel()
            await asyncio.wait([task])

    @property
    def num_bytes(self) -> int:
        """About what it holds."""
        return len(self.answer) + self.asked.num_bytes + _PER_ITEM


class ResponseStore:
    """At most so many responses and bytes over all clients; beyond that, the oldest of the greediest client goes.

    Responses under way are never dropped: the service bounds how many of them there are.
    """

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._records: dict[str, StoredResponse] = {}
        self._numbers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        """About what all of them hold."""
        return self._bytes.total()

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """A response of this client; None for those of others."""
        record = self._records.get(response_id)
        return record if record is not None and record.owner == owner else None

    def find_item(self, owner: str, item_id: str) -> Item | None:
        """What a response of this client has said, by its id."""
        mine = (each for each in reversed(self._records.values()) if each.owner == owner)
        return next((item for record in mine for item in record.said if item.id == item_id), None)

    def put(self, owner: str, record: StoredResponse) -> None:
        """Keep a response, or note its new size; may drop finished ones."""
        self.drop(owner, record.response_id)
        record.owner, record.counted = owner, record.num_bytes
        self._records[record.response_id] = record
        self._numbers[owner] += 1
        self._bytes[owner] += record.counted
        while len(self) > self._max_responses or self.num_bytes > self._max_bytes:
            if not self._drop_one():
                break

    def settle(self, owner: str, record: StoredResponse) -> None:
        """Note the new size of a response that has ended; one that was deleted meanwhile stays away."""
        if self.find(owner, record.response_id) is record:
            self.put(owner, record)

    def drop(self, owner: str, response_id: str) -> None:
        """Forget a response; conversations that continue it keep what was said."""
        record = self.find(owner, response_id)
        if record is not None:
            del self._records[response_id]
            self._numbers[owner] -= 1
            self._bytes[owner] -= record.counted

    def _drop_one(self) -> bool:
        """Drop the oldest finished response of the client that holds the most."""
        held = self._bytes if self.num_bytes > self._max_bytes else self._numbers
        for owner, _ in held.most_common():
            for record in self._records.values():
                if record.owner == owner and record.task is None:
                    self.drop(owner, record.response_id)
                    return True
        return False


def _without_logprobs(item: OutputItem) -> OutputItem:
    if not isinstance(item, OutputMessage):
        return item
    plain = [OutputText(text=part.text) for part in item.content]
    return OutputMessage(id=item.id, status=item.status, content=plain)
