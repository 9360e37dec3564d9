"""A recorded run in the page: wherever it is wound to, it has the books that the engine had."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from playwright.sync_api import Page, expect

from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.trace import Snapshot, Turn
from tests.browser.engine_page import VIEW, block_tables, shown_books, table, written
from tests.browser.visits import Visits
from tests.patience import PATIENCE
from tests.process.command import run, started
from tests.unit.entrypoints.recorded_run import SECRET, RecordedRun, recorded_run

HOSTILE = (
    "</script><script>document.title='broken'</script>",
    '<img src="http://attacker.invalid/x.png" onerror="document.title=\'broken\'">',
    "line\u2028separator\nand break",
    "\u202eright to left",
    "{{7*7}} ${7*7} ' \" `",
    "x" * 300,
)
POSITION = f"{VIEW}.player.position"


@attrs.frozen
class Recording:
    """A trace file, and the books after each of its records."""

    path: pathlib.Path
    books: list[Any]


def record(path: pathlib.Path, recorded: RecordedRun) -> Recording:
    path.write_bytes(b"".join(recorded.lines))
    first, *rest = recorded.records
    assert isinstance(first, Snapshot)
    replay = Replay(first)
    books = [written(replay.snapshot())]
    for each in rest:
        assert isinstance(each, Turn)
        replay.apply(each)
        books.append(written(replay.snapshot()))
    return Recording(path, books)


@contextlib.contextmanager
def inspecting(path: pathlib.Path) -> Iterator[str]:
    """`nanoserve inspect FILE` and the address that it prints."""
    with started("inspect", str(path), "--no-browser") as process:
        assert process.stdout is not None
        lines = []
        while line := process.stdout.readline().decode():
            lines.append(line)
            if found := re.search(r"http://\S+", line):
                yield found[0]
                break
        else:
            raise AssertionError(lines)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    recorded = recorded_run(words=True)
    return record(tmp_path_factory.mktemp("run") / "run.jsonl", recorded)


@pytest.fixture(scope="module")
def url(chromium: str, recording: Recording) -> Iterator[str]:
    with inspecting(recording.path) as address:
        yield address


@pytest.fixture
def page(visits: Visits, url: str) -> Page:
    return open_recording(visits, url)


def open_recording(visits: Visits, url: str, **options: Any) -> Page:
    page = visits.open(url, **options)
    expect(page.locator(".engine-state")).to_have_text("Recording")
    page.wait_for_function(f"() => {POSITION} > 1")
    press(page, "To the start")
    assert page.evaluate(POSITION) == 1
    return page


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def assert_position(page: Page, recording: Recording, position: int) -> None:
    assert page.evaluate(POSITION) == position
    assert shown_books(page) == recording.books[position - 1]


def held_blocks(books: Any) -> int:
    """How many blocks some sequence of a snapshot holds."""
    return len({block for sequence in books[3] for table in sequence[-1] for block in table if block})


def test_it_opens_where_most_blocks_are_held_with_all_its_steps_in_sight_and_plays_from_the_start(
    visits: Visits, url: str, recording: Recording
) -> None:
    page = visits.open(url)
    page.wait_for_function(f"() => {POSITION} > 1")
    position = page.evaluate(POSITION)
    assert_position(page, recording, position)
    most = max(held_blocks(each) for each in recording.books)
    assert held_blocks(recording.books[position - 1]) == most > held_blocks(recording.books[-1])
    expect(page.locator("#engine-blocks-0")).to_contain_text(f"{most} held")
    page.get_by_role("application", name=re.compile("Timeline")).focus()
    page.keyboard.press("End")
    expect(page.locator("#engine-step-facts")).to_contain_text(f"Step {min(recording.books[-1][2], 120)},")
    page.get_by_role("combobox", name="Speed").select_option("1")
    press(page, "Play")
    page.wait_for_function(f"position => {POSITION} < position", arg=position)


def test_step_by_step_and_wherever_the_scrubber_is_put_it_has_the_books(
    page: Page, recording: Recording
) -> None:
    for position in range(2, 14):
        press(page, "One turn on")
        assert_position(page, recording, position)
    for position in range(12, 8, -1):
        press(page, "One turn back")
        assert_position(page, recording, position)
    press(page, "To the end")
    assert_position(page, recording, len(recording.books))
    scrubber = page.get_by_role("slider", name="Position in the log")
    for position in (len(recording.books) // 2, 3, 1):
        scrubber.fill(str(position))
        assert_position(page, recording, position)
    scrubber.focus()
    page.keyboard.press("ArrowRight")
    assert_position(page, recording, 2)


def test_it_plays_pauses_and_comes_to_the_end(page: Page, recording: Recording) -> None:
    page.get_by_role("combobox", name="Speed").select_option("10")
    press(page, "Play")
    page.wait_for_function(f"() => {POSITION} >= 4")
    press(page, "Pause")
    position = page.evaluate(POSITION)
    assert position < len(recording.books)
    assert_position(page, recording, position)
    page.get_by_role("combobox", name="Speed").select_option("250")
    press(page, "Play")
    page.wait_for_function(f"() => {VIEW}.player.isAtEnd")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert_position(page, recording, len(recording.books))


def test_the_tables_say_what_the_books_say(page: Page, recording: Recording) -> None:
    position = len(recording.books) // 2
    page.get_by_role("slider", name="Position in the log").fill(str(position))
    sequences = recording.books[position - 1][3]
    names = {f"{each[1]}{f' #{each[2]}' if each[2] else ''}": each for each in sequences}
    assert block_tables(page) == {name: each[-1][0] for name, each in names.items() if each[-1]}
    assert {row[0]: row[1] for row in table(page, "Timeline as a table")} == {
        name: each[5] for name, each in names.items()
    }


def test_words_are_shown_where_the_trace_has_them(page: Page, recording: Recording) -> None:
    page.get_by_role("slider", name="Position in the log").fill("3")
    page.locator("[aria-roledescription='block map']").focus()
    page.keyboard.press("Home")
    expect(page.locator(".engine-words")).to_contain_text(SECRET[:3])


def test_a_report_opens_from_the_disk_asks_for_nothing_and_hostile_names_are_only_names(
    visits: Visits, tmp_path: pathlib.Path
) -> None:
    recording = record(tmp_path / "hostile.jsonl", recorded_run(*HOSTILE))
    report = tmp_path / "report.html"
    done = run("inspect", str(recording.path), "--report", str(report))
    assert done.returncode == 0, done.stderr.decode()
    page = open_recording(visits, report.as_uri())
    press(page, "To the end")
    assert_position(page, recording, len(recording.books))
    page.get_by_role("slider", name="Position in the log").fill("3")
    assert_position(page, recording, 3)
    named = {row[0].split(" #")[0] for row in table(page, "Timeline as a table")}
    assert named == set(HOSTILE)
    assert page.title().startswith("nanoserve")
    assert page.locator("img, #engine-view script").count() == 0
    assert visits.requested == [report.as_uri()]
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
