from __future__ import annotations

import time

import pytest

from nanoserve.adapters.system.process import SystemClock


def test_seconds_pass_and_never_return() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    before = time.monotonic()
    time.sleep(0.01)
    assert clock.now() - before >= 0.01


def test_setting_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.now() >= before
