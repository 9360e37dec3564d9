"""The engine's page with many sequences at once: a strip for every row of the batch, each of which can be named and followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.engine_page import NEXT_FRAMES, VIEW, open_engine, script
from tests.browser.sending import sender
from tests.browser.stepped_server import SteppedServer, stepped_server
from tests.browser.test_accessibility import SCREENS, grave_faults, too_wide
from tests.browser.visits import Visits, unfolded

FEW, MANY = 64, 256
FOLLOWED = f"() => {VIEW}.player.log.history.rows.get({VIEW}.selected)?.id ?? null"
PIXELS = script("pixels.js")
MOST_NODES = 4000


@pytest.fixture(scope="module")
def stepped(chromium: str) -> Iterator[SteppedServer]:
    with stepped_server(
        block_size=16,
        num_kv_blocks=1024,
        max_model_len=64,
        max_num_seqs=MANY,
        max_num_batched_tokens=1024,
    ) as started:
        yield started


@pytest.fixture(params=[FEW, MANY])
def crowd(request: pytest.FixtureRequest, visits: Visits, held: SteppedServer) -> Iterator[tuple[Page, int]]:
    """The page when so many sequences decode, and their number."""
    page = open_engine(visits, held.url)
    count: int = request.param
    with sender(held.url) as sending:
        fill(held, page, sending, count)
        yield page, count
        held.let_go()


def fill(held: SteppedServer, page: Page, sending: Any, count: int) -> None:
    for half in range(2):
        sending.send([100 + half] * 4, n=count // 2, max_tokens=40)
        held.wait_for_living((half + 1) * count // 2)
    while len(held.engine.scheduler.table.rows.running) < count:
        held.turn()
    held.turn(3)
    step = held.engine.scheduler.table.step
    page.wait_for_function(f"step => {VIEW}.replay.committed >= step", arg=step)
    page.evaluate(NEXT_FRAMES)


def timeline(page: Page) -> Locator:
    return page.locator("[aria-roledescription='timeline']")


def strips(page: Page) -> list[tuple[int, int, float]]:
    """The rows of the batch in each strip, [first, end), and its middle."""
    found: list[tuple[int, int, float]] = page.evaluate(f"""() => {{
      const {{ crowd }} = {VIEW}.timeline;
      const strips = new Map();
      for (let y = 0; y < crowd.height; y += 0.25) {{
        const [first, end] = crowd.seatsAt(y);
        if (end) strips.set(first, [first, end, [...(strips.get(first)?.[2] ?? []), y]]);
      }}
      return [...strips.values()].map(([first, end, all]) => [first, end, all[all.length >> 1]]);
    }}""")
    return found


def seats(held: SteppedServer) -> dict[str, int | None]:
    """The row of the batch that each sequence has in the engine's books, by the name that the page has for it."""
    return {
        f"{each.request.request_id}{f' #{each.index}' if each.index else ''}": each.row
        for each in held.engine.scheduler.table.rows.running
    }


def test_every_row_is_drawn_named_and_chosen_with_the_keyboard(
    crowd: tuple[Page, int], held: SteppedServer
) -> None:
    page, count = crowd
    books = seats(held)
    assert set(books.values()) == set(range(count))
    timeline(page).focus()
    named = {}
    for _ in range(count):
        page.keyboard.press("ArrowDown")
        name, seat = page.evaluate(f"""() => {{
          const row = {VIEW}.player.log.history.rows.get({VIEW}.selected);
          return [row.index ? `${{row.requestId}} #${{row.index}}` : row.requestId, row.spans.at(-1).seat];
        }}""")
        named[name] = seat
    assert named == books
    assert list(named.values()) == list(range(count)), "from row to row"
    expect(page.locator("#engine-step-facts")).to_contain_text(f"{list(named)[-1]}: 4 prompt tokens")
    page.keyboard.press("Escape")
    assert page.evaluate(FOLLOWED) is None


def test_a_strip_is_filled_names_its_sequences_and_leads_to_them(
    crowd: tuple[Page, int], held: SteppedServer
) -> None:
    page, count = crowd
    shown = strips(page)
    assert [seat for first, end, _ in shown for seat in range(first, end)] == list(range(count))
    newest = page.evaluate(f"{VIEW}.timeline.newest")
    colours = page.evaluate(PIXELS, [newest, [y for _, _, y in shown]])
    assert all(blue > red + 40 for red, _, blue in colours), "every strip decodes"
    box = timeline(page).bounding_box()
    assert box is not None
    first, end, y = shown[-1]
    x = box["x"] + page.evaluate(f"() => ({VIEW}.timeline.scale.end - 2)")
    by_seat = {seat: name for name, seat in seats(held).items()}
    page.mouse.move(x, box["y"] + y)
    expect(page.locator("#engine-step-facts")).to_contain_text(
        f"rows {first}\u2013{end - 1}: {', '.join(by_seat[seat] for seat in range(first, end))}"
        if end - first > 1
        else f"row {first}: {by_seat[first]}"
    )
    for seat in range(first, end):
        page.mouse.click(x, box["y"] + y)
        assert page.evaluate(f"{VIEW}.selected.split(':')[1]") == str(
            next(each.key for each in held.engine.scheduler.table.rows.running if each.row == seat)
        )
    page.mouse.click(x, box["y"] + y)
    assert page.evaluate(FOLLOWED) is None, "behind the last of them comes nobody"


def test_lists_and_tables_have_all_of_them_in_few_elements(crowd: tuple[Page, int]) -> None:
    page, count = crowd
    expect(page.locator(".engine-queue > div").first.get_by_role("button")).to_have_count(count)
    assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
    pressed = page.get_by_role("button", pressed=True)
    page.locator(".engine-lines button").last.click()
    expect(pressed).to_have_count(1)
    expect(page.locator("#engine-step-facts")).to_contain_text("4 prompt tokens")


@pytest.mark.parametrize("screen", SCREENS)
def test_a_crowd_can_be_used_by_all(visits: Visits, held: SteppedServer, screen: str) -> None:
    page = open_engine(visits, held.url, **SCREENS[screen])
    with sender(held.url) as sending:
        fill(held, page, sending, FEW)
        timeline(page).focus()
        page.keyboard.press("ArrowDown")
        assert grave_faults(unfolded(page)) == []
        assert too_wide(page) == []
        held.let_go()


def test_few_have_rows_of_their_own_again(visits: Visits, held: SteppedServer) -> None:
    page = open_engine(visits, held.url)
    with sender(held.url) as sending:
        sending.send([7] * 4, n=24, max_tokens=6)
        held.wait_for_living(24)
        held.turn(2)
        page.wait_for_function(f"() => {VIEW}.timeline.rows.drawn?.length === 24")
        sending.send([8] * 4, n=2, max_tokens=2)
        held.wait_for_living(26)
        held.turn()
        page.wait_for_function(f"() => {VIEW}.timeline.isCrowd")
        held.let_go()
    with sender(held.url) as sending:
        held.hold()
        sending.send([9] * 4, max_tokens=50)
        held.wait_for_living(1)
        held.turn(30)
        for _ in range(3):
            page.get_by_role("button", name="Show fewer steps").click()
        page.wait_for_function(f"() => !{VIEW}.timeline.isCrowd")
        held.let_go()
