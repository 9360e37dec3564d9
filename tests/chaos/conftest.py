"""The server of most of these tests, started once per worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.subject import BOUNDS, EXACT, Subject, serving


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with serving(tmp_path_factory.mktemp("subject"), *BOUNDS, *EXACT) as started:
        yield started
