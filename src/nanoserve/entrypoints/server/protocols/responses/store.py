"""Responses kept for later: to be fetched, cancelled, deleted and continued."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import attrs
import msgspec

from nanoserve.entrypoints.app.conversation_store import ConversationStore, Record
from nanoserve.entrypoints.server.protocols.responses.answer import (
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseObject,
)
from nanoserve.entrypoints.server.protocols.responses.items import Item, texts_of

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


@attrs.define(eq=False, kw_only=True)
class StoredResponse(Record):
    """One response, finished or under way.

    Attributes:
        answer: the response object as JSON.
        asked: the conversation that it answers; `said` is what it added, without log-probabilities.
    """

    background: bool
    status: str
    answer: bytes = b""
    asked: History
    said: tuple[Item, ...] = ()

    @classmethod
    def of(cls, response: ResponseObject, asked: History) -> StoredResponse:
        """A record of a response as it stands."""
        record = cls(
            record_id=response.id, background=response.background, status=response.status, asked=asked
        )
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


def find_item(store: ConversationStore, owner: str, item_id: str) -> Item | None:
    """What a response of this client has said, by its id."""
    mine = store.records_of(owner, StoredResponse)
    return next((item for record in mine for item in record.said if item.id == item_id), None)


def _without_logprobs(item: OutputItem) -> OutputItem:
    if not isinstance(item, OutputMessage):
        return item
    plain = [OutputText(text=part.text) for part in item.content]
    return OutputMessage(id=item.id, status=item.status, content=plain)
