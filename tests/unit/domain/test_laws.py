"""The laws of cache groups one by one, against what each kind reads, position by position."""

from __future__ import annotations

import itertools

import pytest

from nanoserve.domain.kv.kinds import RecurrentLaw, law_of, pool_needs
from nanoserve.domain.kv.laws import Law
from nanoserve.domain.kv.states import Snapshots
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.model_spec import (
    CacheGroup,
    CacheKind,
    Full,
    Latent,
    PoolNeed,
    Recurrent,
    Uncached,
    Window,
    per_group,
)

KINDS: list[CacheKind] = [Full(), Latent(), *(Window(tokens) for tokens in (1, 2, 4, 5, 7, 9)), Recurrent()]


def of(kind: CacheKind, block_size: int = 4) -> Law:
    return law_of(CacheGroup(layers=(0,), kind=kind), block_size)


def blocks_read(kind: CacheKind, length: int, block_size: int) -> set[int]:
    """The blocks that the token behind `length` whole-block tokens reads of those before it, or the state's place."""
    match kind:
        case Full() | Latent():
            seen = range(length)
        case Window(tokens):
            seen = range(max(0, length - tokens + 1), length)
        case Recurrent():
            seen = range(max(0, length - 1), length)
    return {position // block_size for position in seen}


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_a_length_can_be_reused_where_all_that_is_read_there_is_known(
    kind: CacheKind, block_size: int
) -> None:
    law = of(kind, block_size)
    for known in itertools.product([False, True], repeat=6):
        found: dict[BlockHash, int | None] = {content: 1 for content, each in enumerate(known) if each}
        found |= dict.fromkeys((content for content, each in enumerate(known) if not each))
        lengths = {
            length
            for length in range(7)
            if all(known[block] for block in blocks_read(kind, length * block_size, block_size))
        }
        assert law.reusable(list(range(6)), found.__getitem__) == lengths


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_what_may_go_is_what_is_before_the_first_block_read(kind: CacheKind) -> None:
    law = of(kind)
    for start in range(0, 40, 4):
        assert law.first_read(start) == min(blocks_read(kind, start, 4), default=law.first_read(start))
    assert law.forgets == isinstance(kind, Window)
    assert (law.snapshots is not None) == isinstance(kind, Recurrent)


def test_what_is_kept_of_nothing_has_no_pages_and_no_prefix() -> None:
    law = of(Uncached(5))
    assert (law.fresh_pages(0, 41, 41), law.peak_pages(41, 8)) == (0, 0)
    assert law.reusable(list(range(6)), lambda _: 1) == {0}
    assert [of(kind).keeps_nothing for kind in KINDS] == [False] * len(KINDS)


def test_room_at_admission() -> None:
    assert [of(kind).fresh_pages(2, 41, 16) for kind in (Full(), Latent(), Window(5), Recurrent())] == [
        9,
        9,
        2,
        1,
    ]
    assert [of(kind).peak_pages(41, 8) for kind in (Full(), Latent(), Window(5), Recurrent())] == [
        11,
        11,
        4,
        1,
    ]


@pytest.mark.parametrize("kind", [Full(), *(Window(tokens) for tokens in (1, 2, 4, 5, 7, 8, 9))], ids=repr)
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_the_peak_of_pages_is_that_of_the_widest_chunk(kind: CacheKind, block_size: int) -> None:
    law = of(kind, block_size)
    for chunk, length in itertools.product((1, 3, 8), range(1, 40)):
        most = 0
        for start in range(length):
            first = min(blocks_read(kind, start, block_size), default=start // block_size)
            end = -(-min(start + chunk, length) // block_size)
            assert law.first_read(start) == first
            most = max(most, end - first)
        assert most <= law.peak_pages(length, chunk) <= most + isinstance(kind, Window)


@pytest.mark.parametrize("junction", [0, 8, 20])
@pytest.mark.parametrize("length", [1, 4, 5, 33, 40, 41])
def test_the_reuse_points_of_a_prompt(length: int, junction: int) -> None:
    points = Snapshots(4, 16, 8)
    last = (length - 1) // 4 * 4
    expected = {each for each in (last, junction, *range(16, length, 16)) if 0 < each <= last}
    assert {each for each in range(length) if points.is_point(each, length, junction)} == expected
    walked, at = set(), 0
    while (at := points.next_point(at, length, junction) or 0) != 0:
        walked.add(at)
    assert walked == expected


def test_intervals_are_whole_blocks() -> None:
    law = of(Recurrent(prompt_interval=9, decode_interval=3))
    assert isinstance(law, RecurrentLaw)
    assert law.snapshots == Snapshots(4, 12, 4)
    assert [each for each in range(1, 20) if law.snapshots.is_due(each)] == [4, 8, 12, 16]


def test_what_a_pool_can_use() -> None:
    groups = [CacheGroup(layers=(0,), kind=kind) for kind in (Full(), Window(1_024), Recurrent())]
    full, window, state = pool_needs(groups, block_size=16, max_model_len=8_192, max_num_batched_tokens=2_048)
    assert full == PoolNeed(least=512, per_row=512, usual=256)
    assert window == PoolNeed(least=193, per_row=65 + 32, fixed=129)
    assert state == PoolNeed(least=1, per_row=2, fixed=2)
    assert [need.most(1) for need in (full, window, state)] == [512, 226, 4]
    (alone,) = pool_needs(groups[1:2], block_size=16, max_model_len=8_192, max_num_batched_tokens=2_048)
    assert alone == full


def test_one_number_of_blocks_is_that_of_every_group() -> None:
    assert (per_group(3, 2), per_group((3,), 2), per_group((3, 4), 2)) == ((3, 3), (3, 3), (3, 4))
    with pytest.raises(ValueError, match="2 groups were given and there are 3"):
        per_group((3, 4), 3)
