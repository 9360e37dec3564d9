"""Walks through a trace with the books as they were after each of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import Snapshot, StatusChange, TraceRecord, Turn


def walk(records: Iterable[TraceRecord]) -> Iterator[tuple[Snapshot | Turn, Replay]]:
    """Every snapshot and turn with the books after it; the books of a later pair may be the same object.

    Raises `TraceError` where a record does not fit to those before it.
    """
    books: Replay | None = None
    for number, record in enumerate(records, start=1):
        if isinstance(record, Snapshot):
            books = Replay(record)
        elif books is None:
            raise TraceError("its first record is no snapshot")
        elif isinstance(record, StatusChange):
            continue
        else:
            _apply(record, number, books)
        yield record, books
    if books is None:
        raise TraceError("it holds nothing but a header")


def _apply(turn: Turn, number: int, books: Replay) -> None:
    try:
        books.apply(turn)
    except (LookupError, TypeError, ValueError) as error:
        message = f"record {number} does not fit to those before it: {type(error).__name__} {error}"
        raise TraceError(message) from error
