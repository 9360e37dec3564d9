"""How many modules a streamed chat goes through, in both processes: who follows a request has to open as many files."""

from __future__ import annotations

import bisect
import pathlib
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.process.server_process import ServerProcess, server_process

FIRST_CHUNK = 82
"""Modules from a request's arrival to its first chunk. It may only fall; to raise it is a commit of its own, with the reason."""
LATER_CHUNK = 51
"""Modules from one later chunk to the next. It may only fall."""
TICKS = "nanoserve.entrypoints.server.serving"
"""The module that is entered ten times a second, whoever asks: on a slow machine within each first chunk."""
BODY = {
    "model": "built-in",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0.5,
    "min_p": 0.1,
    "max_tokens": 32,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, pathlib.Path]]:
    folder, notes = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("notes")
    path = str(pathlib.Path(__file__).parent / "entered_modules")
    with server_process(folder, extra={"PYTHONPATH": path, "ENTERED_MODULES": str(notes)}) as server:
        server.wait_until_ready()
        yield server, notes


def stream(server: ServerProcess) -> list[int]:
    """Nanoseconds at which a chat was asked for and at which each of its chunks came."""
    asked = time.monotonic_ns()
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        lines = answer.iter_lines()
        return [asked, *(time.monotonic_ns() for line in lines if line.startswith("data: {"))]


def entered(notes: pathlib.Path, windows: list[tuple[int, int]]) -> list[set[tuple[str, str]]]:
    """Process and module of every call in each window of time; windows do not overlap and rise."""
    found: list[set[tuple[str, str]]] = [set() for _ in windows]
    starts = [start for start, _ in windows]
    for page in notes.iterdir():
        for line in page.read_text().splitlines():
            at, _, module = line.partition(" ")
            place = bisect.bisect_right(starts, int(at)) - 1
            if place >= 0 and int(at) <= windows[place][1]:
                found[place].add((page.name, module))
    return found


def test_a_streamed_chat_goes_through_no_more_modules_than_before(
    profiled: tuple[ServerProcess, pathlib.Path],
) -> None:
    server, notes = profiled
    stream(server)  # what is done once is done now
    times = [stream(server) for _ in range(6)]
    # Probes and reports come and go with the clock: what belongs to a request is entered each time, to a chunk nearly each time.
    first = set.intersection(*entered(notes, [(each[0], each[1]) for each in times]))
    first = {each for each in first if each[1] != TICKS}
    windows = entered(notes, [window for each in times for window in pairwise(each[6:27])])
    counts = Counter(module for window in windows for module in window)
    later = {module for module, count in counts.items() if count >= 0.75 * len(windows)}
    assert {process for process, _ in first} > {process for process, _ in later}, (
        "one fills the chat template"
    )
    assert len({process for process, _ in later}) == 2
    assert len(later) > 20
    assert len(first) <= FIRST_CHUNK, sorted(first)
    assert len(later) <= LATER_CHUNK, sorted(later)
