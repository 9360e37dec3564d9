"""The whole application with two names for its model, and one HTTP client for all tests of the protocols."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx

from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.ports.errors import StepFailedError
from tests.patience import PATIENCE
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

HTTP = httpx.Client(timeout=PATIENCE, trust_env=False)
"""One for all tests: to make a client takes longer than to ask with it."""


def serving(
    *, fail_at: dict[int, StepFailedError] | None = None, **settings: Any
) -> AbstractContextManager[AppWorld]:
    return app_world(fail_at=fail_at, service=ServiceSettings(model_names=("scripted", "alias"), **settings))
