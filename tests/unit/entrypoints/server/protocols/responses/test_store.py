"""The bounds of the store of responses."""

from __future__ import annotations

import asyncio
from typing import cast

from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.server.protocols.responses.items import read_items
from nanoserve.entrypoints.server.protocols.responses.responding import StoredResponse
from tests.unit.domain.world import HandClock


def record(name: str, *texts: str) -> StoredResponse:
    asked = [read_items(text, lambda _: None) for text in texts or ("",)]
    return StoredResponse(record_id=name, asked=sum(asked, ()), answer=b"{}")


def names(store: ConversationStore, owner: str, *candidates: str) -> list[str]:
    return [name for name in candidates if store.find(owner, name, StoredResponse)]


def audit(store: ConversationStore) -> None:
    kept = store._records.values()
    assert store.num_bytes == sum(each.num_bytes for each in kept)
    assert store._numbers.total() == len(kept)


def test_the_oldest_goes_first() -> None:
    store = ConversationStore(max_records=2)
    for name in "abc":
        store.put("me", record(name))
        audit(store)
    assert names(store, "me", *"abc") == ["b", "c"]


def test_the_client_with_the_most_pays() -> None:
    store = ConversationStore(max_records=4)
    store.put("quiet", record("q"))
    for name in "abcdef":
        store.put("greedy", record(name))
    audit(store)
    assert names(store, "quiet", "q") == ["q"]
    assert names(store, "greedy", *"abcdef") == ["d", "e", "f"]


def test_bytes_are_bounded_and_the_client_with_the_most_bytes_pays() -> None:
    small = record("x").num_bytes
    store = ConversationStore(max_bytes=10 * small + 100_000)
    for name in "abcd":
        store.put("many", record(name))
    store.put("big", record("A", "x" * 60_000))
    store.put("big", record("B", "x" * 60_000))
    audit(store)
    assert store.num_bytes <= 10 * small + 100_000
    assert names(store, "many", *"abcd") == list("abcd")
    assert names(store, "big", "A", "B") == ["B"]


def test_one_that_is_too_large_alone_is_not_kept() -> None:
    store = ConversationStore(max_bytes=1000)
    store.put("me", record("a", "x" * 2000))
    assert not names(store, "me", "a")
    audit(store)


def test_a_response_under_way_is_never_dropped() -> None:
    store = ConversationStore(max_records=1)
    working = record("working")
    working.task = cast("asyncio.Task[None]", object())
    store.put("me", working)
    for name in "ab":
        store.put("me", record(name))
    assert names(store, "me", "working", "a", "b") == ["working"]
    working.task = None
    store.put("me", record("c"))
    assert names(store, "me", "working", "c") == ["c"]
    audit(store)


def test_what_is_as_old_as_it_may_be_is_gone_and_known_to_have_expired() -> None:
    clock = HandClock()
    store = ConversationStore(lifetime=10.0, now=clock.now, max_records=3)
    working = record("working")
    working.task = cast("asyncio.Task[None]", object())
    store.put("me", working)
    store.put("me", record("old"))
    clock.time = 5.0
    store.put("me", record("new"))
    clock.time = 9.5
    assert names(store, "me", "old", "new", "working") == ["old", "new", "working"]
    clock.time = 10.0
    assert [each.record_id for each in store.records_of("me", StoredResponse)] == ["new", "working"]
    audit(store)
    assert store.fate("me", "old") == "has expired: it was kept for 10 seconds (--conversation-lifetime)"
    for owner, name in (("you", "old"), ("me", "never")):
        assert store.fate(owner, name).startswith("does not exist")
    working.task = None
    store.settle("me", working)
    clock.time = 19.5
    assert names(store, "me", "new", "working") == ["working"]
    for number in range(4):
        store.put("me", record(f"{number}"))
    clock.time = 40.0
    assert names(store, "me", *"0123") == []
    assert (len(store), store.num_bytes, len(store._expired)) == (0, 0, 3)


def test_a_record_is_counted_at_its_newest_size() -> None:
    store = ConversationStore()
    kept = record("a")
    store.put("me", kept)
    kept.answer = b"x" * 5000
    store.settle("me", kept)
    audit(store)
    store.drop("me", "a")
    assert (len(store), store.num_bytes) == (0, 0)
    store.settle("me", kept)
    assert store.find("me", "a", StoredResponse) is None


def test_a_continued_conversation_counts_what_it_shares() -> None:
    once, twice, thrice = (record("a", *["x" * 100] * times).num_bytes for times in (1, 2, 3))
    assert thrice - twice == twice - once > 100
