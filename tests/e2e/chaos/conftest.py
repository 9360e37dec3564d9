"""The server of most of these tests, started once per worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.chaos.subject import Subject, serving

MOST_WAITING = 64


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Runs 64 sequences at once and lets as many requests wait."""
    bounds = ("--max-waiting-requests", str(MOST_WAITING), "--send-timeout", "8")
    with serving(tmp_path_factory.mktemp("crowded"), *bounds) as subject:
        yield subject
