"""Prefix reuse at its edges, and what sliding windows keep."""

from __future__ import annotations

import pytest

from nanoserve.domain.kv import cache as cache_module
from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.kv.names import HashFunction, chain_root, fast_hash, strong_hash
from nanoserve.domain.scheduling.admission import fits_alone
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.model_spec import CacheGroup, Window
from nanoserve.ports.step import SINK_BLOCK, AdmittedRow
from tests.fakes.memory_runner import BrokenPlanError
from tests.unit.domain.world import FULL, World, oracle

WINDOWED = CacheGroup(layers=(2,), kind=Window(7))


def admitted_rows(world: World) -> list[AdmittedRow]:
    return [entry for plan in world.runner.plans for entry in plan.admitted]


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12), (17, 16), (19, 16)]
)
def test_one_token_at_least_is_computed_of_a_prompt_that_is_all_cached(length: int, cached: int) -> None:
    world = World()
    world.add("warm", range(length), max_tokens=6)
    world.run()
    world.add("a", range(length), max_tokens=6)
    assert world.admissions("a") == [cached]
    assert world.answer("a").token_ids == oracle(range(length), 6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_generated_tokens_are_found_too_and_only_as_far_as_they_were_computed(depth: int) -> None:
    prompt = range(6)
    said = oracle(prompt, 10)
    world = World(depth=depth)
    world.add("warm", prompt, max_tokens=10)
    world.run()
    world.add("a", [*prompt, *said, 5, 5, 5, 5], max_tokens=3)
    assert world.admissions("a") == [12]
    assert world.answer("a").token_ids == oracle([*prompt, *said, 5, 5, 5, 5], 3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_block_is_found_from_when_it_is_planned_and_counts_as_known_when_it_is_written(depth: int) -> None:
    world = World(depth=depth)
    world.add("a", range(20), max_tokens=4)
    assert world.scheduler.plan() is not None
    pool = world.scheduler.cache.allocators[0]
    block = pool.find(fast_hash(chain_root("salt", "", isolated=False), (0, 1, 2, 3)))
    assert block in pool.promised
    assert pool.findable == ()

    world = World(depth=depth, max_num_batched_tokens=64)
    world.add("a", range(20), max_tokens=4)
    world.add("b", range(20), max_tokens=4)
    assert world.admissions("b") == [16]
    pool = world.scheduler.cache.allocators[0]
    assert block in pool.findable
    assert not pool.promised


def test_a_name_that_was_promised_is_settled_once_by_its_step_or_goes() -> None:
    pool, lost = BlockAllocator(4), list[BlockHash]()
    pool.on_lost = lost.append
    one, other, third, fourth = pool.allocate(4)
    assert pool.register(one, 7, step=1) == one
    assert pool.register(other, 7, step=2) == one
    assert not pool.settle(one, step=2)
    assert pool.register(other, 7) == other  # what is written comes before what will be
    assert (pool.find(7), pool.settle(one, step=1), pool.findable) == (other, False, (other,))
    assert pool.register(third, 8, step=2) == third
    assert pool.settle(third, step=2)
    pool.take_back(third, step=2)
    assert pool.find(8) == third
    assert pool.register(fourth, 9, step=3) == fourth
    pool.release(fourth)
    pool.take_back(fourth, step=3)
    assert (pool.find(9), pool.num_kept, pool.num_free) == (None, 0, 1)
    (fourth,) = pool.allocate(1)
    assert pool.register(fourth, 9, step=4) == fourth
    pool.release(fourth)
    pool.allocate(1)
    assert (pool.find(9), lost) == (None, [])  # nobody was told of it
    pool.audit({one: 1, other: 1, third: 1, fourth: 1})


def test_an_aborted_prefill_leaves_what_its_steps_write() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("a", range(40), max_tokens=4)
    world.turn()
    world.scheduler.plan()
    world.engine.abort("a")
    pool = world.scheduler.cache.allocators[0]
    assert (pool.num_kept, len(pool.findable), len(pool.promised)) == (4, 2, 2)
    assert world.free_blocks == [64]


def test_salts_never_share() -> None:
    world = World()
    for name, salt in (("warm", "one"), ("a", "two"), ("b", ""), ("c", "one")):
        world.add(name, range(20), max_tokens=2, cache_salt=salt)
        assert world.admissions(name) == [16 if name == "c" else 0]


def test_prefixes_share_only_from_the_beginning() -> None:
    world = World()
    world.add("warm", range(24), max_tokens=1)
    world.run()
    world.add("shifted", [99, *range(23)], max_tokens=1)
    world.add("tail", [*range(4), 99, *range(5, 24)], max_tokens=1)
    world.add("same", range(24), max_tokens=1)
    world.run()
    found = {entry.token_ids[0:5]: entry.num_computed_tokens for entry in admitted_rows(world)[1:]}
    assert found == {(99, 0, 1, 2, 3): 0, (0, 1, 2, 3, 99): 4, (0, 1, 2, 3, 4): 20}


def test_without_prefix_caching_nothing_is_found() -> None:
    world = World(prefix_caching=False)
    for name in ("warm", "a"):
        world.add(name, range(20), max_tokens=2)
        assert world.admissions(name) == [0]


def test_forgotten_prefixes_are_not_found() -> None:
    world = World()
    world.add("warm", range(20), max_tokens=2)
    world.run()
    world.engine.forget_prefixes()
    world.add("a", range(20), max_tokens=2)
    assert world.admissions("a") == [0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_blocks_computed_twice_become_one_in_the_runners_tables_too(depth: int) -> None:
    world = World(depth=depth)
    world.add("a", range(12), max_tokens=10)
    world.add("b", range(12), max_tokens=10, prompt_logprobs=0)  # reuses nothing
    for _ in range(4 + depth):
        world.turn()
    one, other = list(world.scheduler.table.rows.running)
    assert one.block_tables[0][:3] == other.block_tables[0][:3]
    pool = world.scheduler.cache.allocators[0]
    assert [pool.reference_count(block) for block in one.block_tables[0][:3]] == [2, 2, 2]
    remapped = [
        (update.row, update.start)
        for plan in world.runner.plans
        for update in plan.table_updates
        if update.row == other.row and update.start < 3
    ]
    assert remapped == [(1, 0), (1, 1), (1, 2)]
    world.run()
    assert world.answer("a").token_ids == world.answer("b").token_ids == oracle(range(12), 10)


def test_a_table_update_is_dropped_with_the_row_it_was_for() -> None:
    world = World(max_num_seqs=2)
    for name in ("a", "b"):
        world.add(name, range(7), max_tokens=2)
    for name, start in (("c", 50), ("d", 70)):
        world.add(name, range(start, start + 10), max_tokens=8)
    world.run()
    taken = world.runner.plans[2]
    assert [entry.row for entry in taken.admitted] == [0, 1]
    assert taken.table_updates == ()
    assert world.answer("c").token_ids == oracle(range(50, 60), 8)
    assert world.answer("d").token_ids == oracle(range(70, 80), 8)


def test_a_preempted_sequence_finds_its_own_blocks_and_computes_only_the_rest() -> None:
    world = World(num_blocks=16)
    world.add("old", range(12), max_tokens=40)
    world.add("young", range(50, 62), max_tokens=40)
    found = world.admissions("young")
    assert world.preemptions >= 1
    assert found[0] == 0
    assert any(each > 0 for each in found[1:])
    resumed = [entry for entry in admitted_rows(world) if entry.token_ids[0] == 50][1:]
    assert all(len(entry.token_ids) > entry.num_computed_tokens for entry in resumed)
    assert world.answer("young").token_ids == oracle(range(50, 62), 40)


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    world = World(num_blocks=10)
    world.add("warm", range(32), max_tokens=1)
    world.run()
    world.add("other", range(100, 116), max_tokens=1)
    world.run()
    assert sum(pool.num_evicted for pool in world.scheduler.cache.allocators) == 2
    world.add("a", range(32), max_tokens=1)
    assert world.admissions("a") == [24]


def test_a_full_group_keeps_what_a_windowed_one_frees() -> None:
    world = World(groups=(FULL, WINDOWED))
    world.add("a", range(20), max_tokens=30)
    for _ in range(20):
        world.turn()
    (sequence,) = world.scheduler.table.rows.running
    full, windowed = sequence.block_tables
    assert SINK_BLOCK not in full
    assert windowed[:7] == [SINK_BLOCK] * 7
    assert SINK_BLOCK not in windowed[8:]


def test_a_window_needs_only_the_blocks_it_sees_to_reuse_a_prefix() -> None:
    world = World(groups=(WINDOWED,), num_blocks=9, max_num_batched_tokens=8)
    world.add("warm", range(24), max_tokens=1)
    world.run()
    pool = world.scheduler.cache.allocators[0]
    hashes: list[BlockHash] = []
    parent: BlockHash = chain_root("salt", "", isolated=False)
    for start in range(0, 24, 4):
        parent = fast_hash(parent, tuple(range(start, start + 4)))
        hashes.append(parent)
    for block in pool.allocate(5):
        pool.release(block)
    found = [pool.find(each) is not None for each in hashes]
    assert found == [False, False, True, True, True, True]
    world.add("a", range(24), max_tokens=5)
    assert world.admissions("a") == [20]
    entry = admitted_rows(world)[-1]
    assert entry.block_tables[0][:3] == (SINK_BLOCK,) * 3
    assert world.answer("a").token_ids == oracle(range(24), 5, window=7)


def test_long_prompts_displace_no_ends_of_other_prompts_from_a_windows_pool() -> None:
    world = World(groups=(FULL, WINDOWED), num_blocks=(400, 24), max_num_batched_tokens=16)
    prompts = [range(100 * number, 100 * number + 81) for number in range(6)]
    for number, prompt in enumerate(prompts):
        world.add(f"warm {number}", prompt, max_tokens=1)
        world.run()
    for number, prompt in enumerate(prompts):
        world.add(f"again {number}", prompt, max_tokens=1)
        assert world.admissions(f"again {number}") == [80]
        world.run()


def test_the_end_of_what_prompts_have_in_common_outlives_what_follows_it_once_it_was_found() -> None:
    world = World(groups=(FULL, WINDOWED), num_blocks=(400, 24), max_num_batched_tokens=16)
    common = list(range(40))
    for number in range(8):
        world.add(f"{number}", [*common, *range(100 * number + 100, 100 * number + 141)], max_tokens=1)
        found = world.admissions(f"{number}")
        world.run()
        if number in (0, 1):  # still there, as the pool is empty enough, or found the second time
            world.add(f"short {number}", [*common, 7], max_tokens=1)
            world.run()
    assert found == [40]


def test_a_prefix_is_reused_only_as_far_as_every_group_has_it() -> None:
    world = World(groups=(FULL, WINDOWED), num_blocks=40)
    world.add("warm", range(24), max_tokens=1)
    world.run()
    world.scheduler.cache.allocators[1].forget()
    world.add("a", range(24), max_tokens=3)
    assert world.admissions("a") == [0]
    assert world.answer("a").token_ids == oracle(range(24), 3, window=7)


def test_what_is_let_in_fits_and_one_block_less_does_not() -> None:
    cache = KVCache([FULL, WINDOWED], num_blocks=5, block_size=4)
    assert fits_alone(cache, 20, 8)
    assert not fits_alone(cache, 21, 8)
    assert fits_alone(KVCache([WINDOWED], num_blocks=5, block_size=4), 10_000, 8)


def collide(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    return 42


def test_isolation_hashes_with_sha256_and_no_collision_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "fast_hash", collide)
    fooled = World()
    fooled.add("warm", range(20), max_tokens=2)
    with pytest.raises(BrokenPlanError):
        fooled.run()
    safe = World(isolated=True)
    for name, start in (("warm", 0), ("a", 50), ("again", 0)):
        safe.add(name, range(start, start + 20), max_tokens=2)
        assert safe.admissions(name) == [16 if name == "again" else 0]
        assert safe.answer(name).token_ids == oracle(range(start, start + 20), 2)


def test_the_memory_runner_sees_a_wrong_block() -> None:
    world = World()
    world.add("a", range(8), max_tokens=6)
    world.turn()
    (sequence,) = world.scheduler.table.rows.running
    world.runner.rows[0].tables[0][0] = sequence.block_tables[0][1]
    plan = world.scheduler.plan()
    assert plan is not None
    world.runner.submit(plan)
    with pytest.raises(BrokenPlanError):
        world.runner.collect(plan)


LAWS: list[tuple[HashFunction, bool]] = [(fast_hash, False), (strong_hash, True)]


@pytest.mark.parametrize(("law", "isolated"), LAWS)
def test_hashes_name_the_block_and_all_before_it(law: HashFunction, isolated: bool) -> None:
    one, two = (chain_root("salt", salt, isolated=isolated) for salt in ("", "x"))
    blocks = [law(parent, ids) for parent in (one, two) for ids in ((1, 2), (2, 1), (1,), (12,))]
    assert len(set(blocks)) == 8
    assert law(one, (1, 2)) == blocks[0]


def test_names_are_the_same_in_every_process() -> None:
    fast = fast_hash(fast_hash(chain_root("salt", "", isolated=False), (1, 2**31 - 1)), (0,))
    strong = strong_hash(strong_hash(chain_root("salt", "", isolated=True), (1, 2**31 - 1)), (0,))
    assert isinstance(strong, bytes)
    assert (fast, strong.hex()) == (
        5107291627044139426,
        "fefe2660bc5e3d073bc59c23304c8d0e80d38368548dac6b5fae7f4201fbf8af",
    )


@pytest.mark.parametrize("isolated", [False, True])
def test_roots_never_meet_however_salts_are_spelt(isolated: bool) -> None:
    salts = [("salt", ""), ("salt", "a"), ("salt", "', 'a"), ("request", ""), ("salt", "\ud800"), ("salta",)]
    assert len({chain_root(*salt, isolated=isolated) for salt in salts}) == len(salts)
