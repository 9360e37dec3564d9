"""The block map against the engine itself, held between two of its turns, where its own audit finds the books in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from nanoserve.domain.invariants import audit
from nanoserve.ports.step import SINK_BLOCK
from tests.browser.engine_page import (
    LOG_END,
    WAITING,
    assert_same_books,
    block_facts,
    block_tables,
    count,
    open_engine,
    shown_books,
    table,
)
from tests.browser.sending import Sender
from tests.browser.stepped_server import SteppedServer, stepped_server
from tests.browser.visits import Visits

BLOCK_SIZE, NUM_BLOCKS = 8, 24
PROMPT = list(range(100, 130))


@pytest.fixture(scope="module")
def stepped(chromium: str) -> Iterator[SteppedServer]:
    """A small pool, and steps of few tokens."""
    with stepped_server(
        block_size=BLOCK_SIZE, num_kv_blocks=NUM_BLOCKS, max_model_len=160, max_num_batched_tokens=16
    ) as started:
        yield started


@pytest.fixture
def page(visits: Visits, stepped: SteppedServer) -> Page:
    return open_engine(visits, stepped.url)


def held_blocks(server: SteppedServer) -> Counter[int]:
    """How many tables hold each block, by the engine's own tables."""
    running = server.engine.scheduler.table.rows.running
    return Counter(block for each in running for block in each.block_tables[0] if block != SINK_BLOCK)


def test_at_every_held_step_the_page_has_the_engines_books(
    page: Page, held: SteppedServer, sending: Sender
) -> None:
    sending.send(PROMPT * 2, max_tokens=30)
    held.wait_for_living(1)
    sending.send(PROMPT[:20], max_tokens=20, n=3)
    held.wait_for_living(4)
    for _ in range(14):
        held.turn()
        audit(held.engine.scheduler)
        assert_same_books(page, held)
    tables = {
        f"{each.request.request_id}{f' #{each.index}' if each.index else ''}": list(each.block_tables[0])
        for each in held.engine.scheduler.table.rows.running
    }
    assert len(tables) == 4
    assert block_tables(page) == tables
    pool = held.engine.scheduler.cache.allocators[0]
    pool.audit(held_blocks(held))
    free = sum(1 for block in pool.findable if block not in held_blocks(held))
    expect(page.locator("#engine-blocks-0")).to_contain_text(f"{len(held_blocks(held))} held")
    expect(page.locator("#engine-blocks-0")).to_contain_text(f"{free} cached and free")
    expect(page.locator("#engine-blocks-0")).to_contain_text(f"{pool.num_free - free} empty, of {NUM_BLOCKS}")


def test_a_paused_view_stays_where_it_is_while_the_engine_goes_on(
    page: Page, held: SteppedServer, sending: Sender
) -> None:
    sending.send(PROMPT, max_tokens=40)
    held.wait_for_living(1)
    held.turn(5)
    assert_same_books(page, held)
    page.get_by_role("button", name="Pause").click()
    before, tables, end = shown_books(page), block_tables(page), page.evaluate(LOG_END)
    held.turn(6)
    page.wait_for_function(f"end => {LOG_END} >= end", arg=end + 6)
    assert shown_books(page) == before
    assert block_tables(page) == tables
    page.get_by_role("button", name="One turn on").click()
    assert shown_books(page)[2] == before[2] + 1
    page.get_by_role("button", name="One turn back").click()
    assert shown_books(page) == before
    page.get_by_role("button", name="Resume").click()
    assert_same_books(page, held)


def test_shared_blocks_show_their_reference_count(page: Page, held: SteppedServer, sending: Sender) -> None:
    sending.send(PROMPT[:20], max_tokens=12, n=4)
    held.wait_for_living(4)
    while len(held.engine.scheduler.table.rows.running) < 4:
        held.turn()
    held.turn()
    assert_same_books(page, held)
    shared = {block: each for block, each in held_blocks(held).items() if each > 1}
    assert set(shared.values()) == {4}
    for block in shared:
        assert "shared by 4 sequences" in block_facts(page, block)
        assert "in the prefix cache" in block_facts(page, block)
    alone = next(block for block, each in held_blocks(held).items() if each == 1)
    assert "held by one sequence" in block_facts(page, alone)
    expect(page.locator("#engine-blocks-0")).to_contain_text(f"({len(shared)} shared)")


def test_the_blocks_of_a_finished_request_turn_free(page: Page, held: SteppedServer, sending: Sender) -> None:
    sending.send(PROMPT[:20], max_tokens=3)
    held.wait_for_living(1)
    held.turn(2)
    assert_same_books(page, held)
    blocks = sorted(held_blocks(held))
    assert len(blocks) == 3
    held.turn_until_idle()
    assert_same_books(page, held)
    assert held_blocks(held) == Counter()
    assert block_tables(page) == {}
    assert [block_facts(page, block).splitlines()[0] for block in blocks] == [
        f"Block {blocks[0]}: free; its content is kept for a prefix hit",
        f"Block {blocks[1]}: free; its content is kept for a prefix hit",
        f"Block {blocks[2]}: free",
    ]


def test_a_prompt_is_computed_in_chunks_beside_those_who_decode(
    page: Page, held: SteppedServer, sending: Sender
) -> None:
    sending.send(PROMPT[:8], max_tokens=30)
    first = held.wait_for_living(1)
    held.turn(3)
    sending.send([200, *PROMPT], max_tokens=4)
    long = held.wait_for_living(2)
    seen = []
    for _ in range(3):
        held.turn()
        assert_same_books(page, held)
        seen.append({row[0]: row[2] for row in table(page, "Timeline as a table")})
    assert [each[first] for each in seen] == ["decode"] * 3
    assert [each[long] for each in seen] == ["prefill [0, 15)", "prefill [15, 30)", "prefill [30, 31)"]
    expect(page.locator("#engine-step-facts")).to_contain_text("2 of at most 16 tokens: 1 prefill + 1 decode")


def test_a_preemption_appears_and_the_sequence_comes_back(
    page: Page, held: SteppedServer, sending: Sender
) -> None:
    sending.send([300, *PROMPT], max_tokens=120)
    old = held.wait_for_living(1)
    sending.send([400, *PROMPT], max_tokens=120)
    young = held.wait_for_living(2)
    before = held.engine.scheduler.counters.preemptions
    while held.engine.scheduler.counters.preemptions == before:
        held.turn()
    assert_same_books(page, held)
    expect(page.locator(".engine-tile", has_text="Preemptions").locator("dd")).to_have_text(str(before + 1))
    expect(count(page, WAITING)).to_have_text("1")
    line = page.get_by_role("button", name=young)
    expect(line).to_contain_text("preempted")
    assert set(block_tables(page)) == {old}
    while len(held.engine.scheduler.table.rows.running) != 2 and held.engine.scheduler.table.waiting:
        held.turn()
    assert_same_books(page, held)
    expect(line).to_contain_text("prefill")
    expect(page.locator("#engine-step-facts")).to_contain_text(f"Resumed: {young}")
