"""Lists that clients read page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nanoserve.ports.errors import BadValueError


class Page(msgspec.Struct, kw_only=True, tag_field="object", tag="list"):
    """Some items of a list."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page(
    items: Sequence[Any], ids: Sequence[str], *, after: str | None, limit: int, newest_first: bool = True
) -> Page:
    """At most `limit` of the items, which come the oldest first, behind the one with the id `after`; raises `BadValueError` if none has it."""
    step = -1 if newest_first else 1
    items, ids = items[::step], ids[::step]
    if after is not None and after not in ids:
        raise BadValueError("after", "there is no such item in this list")
    start = 0 if after is None else ids.index(after) + 1
    end = start + limit
    shown: Sequence[str | None] = ids[start:end] or [None]
    return Page(data=[*items[start:end]], first_id=shown[0], last_id=shown[-1], has_more=end < len(ids))
