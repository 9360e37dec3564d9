from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.kv.names import fast_hash
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockHash
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=7)
CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "forget"]), st.integers(0, 3), PROMPTS), max_size=25
)


def chain(prompt: list[int]) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for each in prompt:
        hashes.append(fast_hash(hashes[-1] if hashes else 0, (each,)))
    return hashes


class NaiveIndex:
    """A list of blocks per replica, the oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[int, list[BlockHash]] = {}

    def add(self, replica: int, hashes: list[BlockHash]) -> None:
        hashes = hashes[: self.most]
        older = [each for each in self.kept.get(replica, []) if each not in hashes]
        self.kept[replica] = [*older, *reversed(hashes)][-self.most :]

    def matches(self, hashes: list[BlockHash]) -> dict[int, int]:
        found = {
            replica: len(list(itertools.takewhile(kept.__contains__, hashes)))
            for replica, kept in self.kept.items()
        }
        return {replica: count for replica, count in found.items() if count}


@given(CALLS, PROMPTS, st.integers(1, 12))
def test_the_index_agrees_with_a_naive_one(
    calls: list[tuple[str, int, list[int]]], asked: list[int], most: int
) -> None:
    index, naive = PrefixIndex(most), NaiveIndex(most)
    for what, replica, prompt in calls:
        if what == "add":
            index.add(replica, chain(prompt))
            naive.add(replica, chain(prompt))
        else:
            index.forget(replica)
            naive.kept.pop(replica, None)
        assert index.matches(chain(asked)) == naive.matches(chain(asked))
        assert len(index) == sum(map(len, naive.kept.values()))


def test_what_a_replica_evicted_is_no_longer_found() -> None:
    index = PrefixIndex(100)
    hashes = chain([1, 0, 1])
    index.add(4, hashes)
    index.add(5, hashes)
    index.remove(4, [hashes[2], 12345])
    assert index.matches(hashes) == {4: 2, 5: 3}
    assert index.matches([]) == {}


def test_an_index_without_room_is_refused() -> None:
    with pytest.raises(BadValueError, match="blocks_per_replica: must be at least 1"):
        PrefixIndex(0)


def test_the_tail_of_a_prompt_goes_before_its_head() -> None:
    index = PrefixIndex(3)
    index.add(0, chain([1, 0, 1]))
    index.add(0, chain([0]))
    assert index.matches(chain([1, 0, 1])) == {0: 2}
    index.add(0, chain([1, 1]))
    assert index.matches(chain([1, 0, 1])) == {0: 1}
