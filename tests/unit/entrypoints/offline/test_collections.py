"""What the garbage collector may do during a call of the `LLM` class, and what it is left as."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nanoserve.entrypoints.compose.process import without_full_collections
from nanoserve.entrypoints.offline import LLM, SamplingParams

EAGER = 10, 1, 1
"""Thresholds at which objects are looked through all the time."""


@pytest.fixture
def full() -> Iterator[list[int]]:
    """Notes full collections, which come often once old objects are frozen."""
    was_frozen, thresholds = gc.get_freeze_count() > 0, gc.get_threshold()
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            found.append(about["generation"])

    gc.callbacks.append(note)
    gc.set_threshold(*EAGER)
    yield found
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)
    if not was_frozen:
        gc.unfreeze()


IMPORTS = """
import gc, sys
from nanoserve.entrypoints.compose import bootstrap
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings

if sys.argv[1] == "frozen":
    gc.freeze()
looked_at = [0]
gc.callbacks.append(lambda phase, _: looked_at.append(len(gc.get_objects(0)) * (phase == "start")))
bootstrap.survey(EngineSettings(device="cpu"))
print(max(looked_at), gc.get_freeze_count() > 0, gc.isenabled())
"""


@pytest.mark.parametrize(("before", "most"), [("usual", 10_000), ("frozen", 1_000_000)])
def test_what_was_imported_is_old_at_once_unless_the_caller_has_frozen_something(
    before: str, most: int
) -> None:
    command = [sys.executable, "-c", IMPORTS, before]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    looked_at, *rest = done.stdout.split()
    assert int(looked_at) < most
    assert rest == [str(before == "frozen"), "True"]


def test_a_call_is_held_up_by_no_full_collection(full: list[int]) -> None:
    with LLM(threads=1) as llm:
        prompts = [llm.get_tokenizer().encode("Once upon a time")] * 8
        session = llm._open_session
        jobs = [session.job(session.read_prompt(each), SamplingParams(max_tokens=20)) for each in prompts]
        gc.freeze()
        gc.collect()
        before = gc.get_freeze_count()
        full.clear()
        counts = [len(full) for _ in session.run(jobs)]
        assert counts[-1] == counts[0] == 0
        assert gc.get_threshold() == EAGER
        assert 0 < gc.get_freeze_count() <= before
        living = [[number] for number in range(1000)]
        assert full
        assert living


def test_the_first_of_two_that_ends_takes_nothing_away_for_good() -> None:
    before = gc.get_threshold()
    first, second = without_full_collections(), without_full_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
