"""In the block map two sequences never look alike, not even where there are more of them than colours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.browser.engine_page import VIEW, block_tables, open_engine, script
from tests.browser.sending import sender
from tests.browser.stepped_server import SteppedServer, stepped_server
from tests.browser.visits import Visits

BLOCK_SIZE, NUM_BLOCKS, NUM_SEQUENCES = 8, 640, 27
CELLS = script("cells.js")
"""The pixels inside of the cells of some blocks, below the number that large ones have."""
COLOURS = script("colours.js")
SWATCHES = script("swatches.js")


@pytest.fixture(scope="module")
def stepped(chromium: str) -> Iterator[SteppedServer]:
    with stepped_server(
        block_size=BLOCK_SIZE, num_kv_blocks=NUM_BLOCKS, max_model_len=64, max_num_seqs=NUM_SEQUENCES
    ) as started:
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_more_sequences_than_colours(visits: Visits, held: SteppedServer, scheme: str) -> None:
    page = open_engine(visits, held.url, color_scheme=scheme)
    with sender(held.url) as sending:
        for number in range(NUM_SEQUENCES):
            sending.send([100 + number] * (2 * BLOCK_SIZE), max_tokens=8)
        held.wait_for_living(NUM_SEQUENCES)
        while len(held.engine.scheduler.table.rows.running) < NUM_SEQUENCES:
            held.turn()
        page.wait_for_function(f"count => {VIEW}.replay.countPhases().running === count", arg=NUM_SEQUENCES)
        first_blocks = [blocks[0] for blocks in block_tables(page).values()]
        colours = page.evaluate(COLOURS)
        looks = [look_of(pixels, colours) for pixels in page.evaluate(CELLS, first_blocks)]
        held.let_go()
    assert len(set(looks)) == len(set(first_blocks)) == NUM_SEQUENCES, Counter(looks).most_common(3)
    assert {colour for colour, _ in looks} == set(range(len(colours)))
    assert [is_other for _, is_other in looks].count(0) == len(colours), "plain ones first"


def test_the_lists_show_the_same_looks(visits: Visits, held: SteppedServer) -> None:
    page = open_engine(visits, held.url)
    with sender(held.url) as sending:
        for number in range(NUM_SEQUENCES + 1):
            sending.send([200 + number] * BLOCK_SIZE, max_tokens=8)
        held.wait_for_living(NUM_SEQUENCES + 1)
        while len(held.engine.scheduler.table.rows.running) < NUM_SEQUENCES:
            held.turn()
        page.wait_for_function(f"count => {VIEW}.replay.countPhases().running === count", arg=NUM_SEQUENCES)
        page.wait_for_function(f"count => ({SWATCHES})().length === count", arg=NUM_SEQUENCES + 1)
        swatches = page.evaluate(SWATCHES)
        held.let_go()
    assert len(set(swatches)) == NUM_SEQUENCES + 1, "who waits has a colour of its own as well"


def look_of(pixels: list[list[int]], colours: list[list[int]]) -> tuple[int, int]:
    """The one of the colours that most of a cell has, and how many eighths of the cell have another one."""
    near = Counter(
        number for pixel in pixels for number, colour in enumerate(colours) if math.dist(colour, pixel) < 8
    )
    [(colour, count)] = near.most_common(1)
    return colour, round(8 * (1 - count / len(pixels)))
