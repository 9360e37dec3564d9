"""Progress of what takes long: lines on standard error where that is no terminal."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.bench import tables
from tests.patience import wait_until


def test_a_pipe_is_told_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "PIPE_SECONDS", 0.01)
    errors = ""

    def heard() -> bool:
        nonlocal errors
        errors += capfd.readouterr().err
        return errors.count("sending 3 requests: 2 answered\n") >= 2

    with tables.doing("sending 3 requests", lambda: "2 answered"):
        wait_until(heard)
    with tables.doing("loading"):
        wait_until(lambda: "loading\n" in capfd.readouterr().err)


def test_what_is_over_soon_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with tables.doing("loading"):
        pass
    assert capfd.readouterr() == ("", "")
