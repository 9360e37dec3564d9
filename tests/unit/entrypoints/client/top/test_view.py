"""What is drawn, and what one line says."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nanoserve.entrypoints.client.top.following import (
    BlockCounts,
    LatencyQuantiles,
    ServerDescription,
    ServerLost,
    ServerStatus,
)
from nanoserve.entrypoints.client.top.view import TopBoard, line, view

BUSY = ServerStatus(
    status="ready",
    restarts=2,
    running=5,
    waiting=3,
    finished={"stop": 12, "length": 4},
    preemptions=6,
    prompt_tokens=1000,
    generated_tokens=500,
    prefix_queries=200,
    prefix_hits=50,
    blocks=BlockCounts(total=800, free=200, cached=80),
    steps=90,
    ttft=LatencyQuantiles(0.023, 0.105),
    itl=LatencyQuantiles(0.008, 0.031),
    viewers=1,
)


def board(*statuses: ServerStatus) -> TopBoard:
    made = TopBoard("http://127.0.0.1:8000")
    made.take(ServerDescription(["tiny"], {"device": "cpu"}), 0.0)
    for number, each in enumerate(statuses):
        made.take(each, 0.5 * number)
    return made


def drawn(shown: TopBoard, width: int = 100, *, colours: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colours, color_system="standard" if colours else None
    )
    console.print(view(shown, console, keys=True))
    return out.getvalue()


def test_everything_is_there() -> None:
    text = drawn(board(BUSY))
    for part in (
        *("http://127.0.0.1:8000", "tiny, cpu", "ready", "75% used, 80 cached of 800", "25% of 200 tokens"),
        *("p50 23 ms p99 105 ms", "p50 8 ms p99 31 ms", "stop 12, length 4", "q leaves"),
    ):
        assert part in text
    rows = {row.split()[0]: row.split()[1:] for row in text.splitlines()[2:] if row.split()}
    assert rows["running"][0] == "5"
    assert rows["waiting"][0] == "3"
    assert rows["preemptions"][0] == "6"
    assert rows["restarts"][0] == "2"


def test_the_bar_shows_used_cached_and_free_blocks() -> None:
    bar = next(row for row in drawn(board(BUSY)).splitlines() if row.startswith("KV blocks"))
    assert [bar.count(each) for each in "▒░"] == [2, 4], "of 24 columns"
    assert "█" * 18 in bar


@pytest.mark.parametrize("width", [10, 20, 44, 59, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn(board(BUSY, BUSY), width)
    assert all(len(row) <= width for row in text.splitlines())
    running = next(row for row in text.splitlines() if row.startswith("running"))
    assert ("█" in running) == (width >= 60), "sparklines only where there is room"


def test_a_lost_server_is_said_and_its_last_numbers_are_dimmed() -> None:
    shown = board(BUSY)
    assert "\x1b[2m5\x1b[0m" not in drawn(shown, colours=True)
    shown.take(ServerLost("nothing answers at x", 2.0), 1.0)
    text = drawn(shown, colours=True)
    assert "lost: nothing answers at x; trying again every 2 s" in text
    assert "\x1b[2m5\x1b[0m" in text, "the number of running ones, dimmed"
    assert "ready" not in text
    shown.take(BUSY, 2.0)
    assert "lost" not in drawn(shown)


def test_a_server_that_drains_says_so() -> None:
    assert "draining" in drawn(board(ServerStatus(status="ready", draining=True)))
    assert "restarting" in drawn(board(ServerStatus(status="restarting", draining=True)))


def test_one_line_has_the_same_numbers() -> None:
    shown = board(BUSY)
    text = line(shown)
    for part in (
        "ready",
        "running 5",
        "waiting 3",
        "KV blocks 75% used",
        "prefix hits 25%",
        "p99 105 ms",
        "stop 12, length 4",
    ):
        assert part in text
    assert "\n" not in text
    shown.take(ServerLost("gone", 1.0), 1.0)
    assert "lost: gone" in line(shown)
    assert "no status yet" in line(TopBoard("x"))


def test_what_a_server_says_cannot_steer_the_terminal() -> None:
    evil = "\x1b[31mred\x07\n"
    shown = board(ServerStatus(status=evil, finished={evil: 3}))
    shown.server = ServerDescription([evil], {})
    assert "\x1b" not in drawn(shown) + line(shown)
    assert "\n" not in line(shown)
    shown.take(ServerLost(evil, 1.0), 1.0)
    assert "\x1b" not in drawn(shown) + line(shown)


def test_a_terminal_without_utf8_gets_other_signs() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(file=file, width=100)
    console.print(view(board(BUSY), console))
    file.flush()
    assert b"##################==...." in raw.getvalue()
