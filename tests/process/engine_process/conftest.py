"""A watch over engines by hand."""

from __future__ import annotations

import pytest

from tests.process.engine_process.hand_watch import HandWatch


@pytest.fixture
def hand_watch(monkeypatch: pytest.MonkeyPatch) -> type[HandWatch]:
    monkeypatch.setattr("nanoserve.adapters.engine_process.client.process.StallWatch", HandWatch)
    monkeypatch.setattr(HandWatch, "stuck", False)
    monkeypatch.setattr(HandWatch, "progress", 0)
    return HandWatch
