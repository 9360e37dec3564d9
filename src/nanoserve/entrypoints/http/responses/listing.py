"""Pages of the conversation that a response answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nanoserve.entrypoints.http.responses.answer import ItemList
from nanoserve.entrypoints.http.responses.reading import Item
from nanoserve.ports.errors import BadValueError


def page(items: Sequence[Item], *, after: str | None, limit: int, order: Literal["asc", "desc"]) -> ItemList:
    """At most `limit` items behind the one with the id `after`; raises `BadValueError` where there is none."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        start = next((place + 1 for place, item in enumerate(ordered) if item.id == after), 0)
        if not start:
            raise BadValueError("after", "there is no such item in this response's conversation")
    shown = ordered[start : start + limit]
    return ItemList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=start + limit < len(ordered),
    )
