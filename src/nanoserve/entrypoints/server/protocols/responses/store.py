"""Responses kept for later: to be fetched, cancelled, deleted and continued; bounded, and each client's own."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Sequence

import attrs
import msgspec

from nanoserve.entrypoints.server.protocols.responses.answer import OutputMessage, OutputText, ResponseObject
from nanoserve.entrypoints.server.protocols.responses.reading import Item

MAX_RESPONSES = 4096
MAX_BYTES = 256 * 2**20
_PER_ITEM = 400
"""Bytes of the objects around a message's text, about."""


@attrs.define(eq=False)
class Conversation:
    """What was said up to a moment.

    Attributes:
        items: oldest first. They are shared with the conversations that continue this one.
        num_bytes: about what it holds, shared parts included: an over-estimate keeps the bound.
    """

    items: tuple[Item, ...] = ()
    num_bytes: int = 0

    def with_items(self, items: Sequence[Item]) -> Conversation:
        """The conversation and what was said next."""
        size = sum(_PER_ITEM + sys.getsizeof(part.text) for item in items for part in item.content)
        return Conversation((*self.items, *items), self.num_bytes + size)


@attrs.define(eq=False)
class StoredResponse:
    """One response, finished or under way.

    Attributes:
        answer: the response object as JSON.
        asked: the conversation that it answers; `said` is what it added, without log-probabilities.
        task: what computes it in the background, until that has ended.
    """

    response_id: str
    background: bool
    status: str
    answer: bytes
    asked: Conversation
    said: tuple[Item, ...] = ()
    task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, response: ResponseObject, asked: Conversation) -> StoredResponse:
        """A record of a response as it stands."""
        record = cls(response.id, response.background, response.status, b"", asked)
        record.update(response)
        return record

    def update(self, response: ResponseObject) -> None:
        """Take over a newer state of the response."""
        self.status = response.status
        self.answer = msgspec.json.encode(response)
        self.said = tuple(_without_logprobs(message) for message in response.output)

    async def cancel(self) -> None:
        """Stop computing it in the background; returns when that has ended, and at once where it already had."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

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
        self._owners: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._sizes: dict[str, int] = {}
        self.num_responses = 0
        self.num_bytes = 0

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """A response of this client; None for everybody else's."""
        return self._owners.get(owner, OrderedDict()).get(response_id)

    def put(self, owner: str, record: StoredResponse) -> None:
        """Keep a response, or note its new size; may drop finished ones."""
        kept = self._owners.setdefault(owner, OrderedDict())
        if record.response_id not in kept:
            kept[record.response_id] = record
            self.num_responses += 1
        self._count(record.response_id, record.num_bytes)
        while self.num_responses > self._max_responses or self.num_bytes > self._max_bytes:
            if not self._drop_one():
                break

    def settle(self, owner: str, record: StoredResponse) -> None:
        """Note the new size of a response that has ended; one that was deleted meanwhile stays away."""
        if self.find(owner, record.response_id) is record:
            self.put(owner, record)

    def drop(self, owner: str, response_id: str) -> StoredResponse | None:
        """Forget a response; conversations that continue it keep what was said."""
        kept = self._owners.get(owner, OrderedDict())
        record = kept.pop(response_id, None)
        if record is not None:
            self.num_responses -= 1
            self._count(response_id, 0)
            if not kept:
                del self._owners[owner]
        return record

    def _count(self, response_id: str, size: int) -> None:
        self.num_bytes += size - self._sizes.pop(response_id, 0)
        if size:
            self._sizes[response_id] = size

    def _drop_one(self) -> bool:
        """Drop the oldest finished response of the client that holds the most."""
        for owner in sorted(self._owners, key=self._weight, reverse=True):
            for response_id, record in self._owners[owner].items():
                if record.task is None:
                    self.drop(owner, response_id)
                    return True
        return False

    def _weight(self, owner: str) -> int:
        kept = self._owners[owner]
        if self.num_bytes <= self._max_bytes:
            return len(kept)
        return sum(self._sizes[response_id] for response_id in kept)


def _without_logprobs(message: OutputMessage) -> OutputMessage:
    plain = [OutputText(text=part.text) for part in message.content]
    return OutputMessage(id=message.id, status=message.status, content=plain)
