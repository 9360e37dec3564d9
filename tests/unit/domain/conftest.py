"""Property tests that are the same on every machine: derandomised, unless a `search` for new failures is asked for."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "domain", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "search", parent=settings.get_profile("domain"), derandomize=False, max_examples=3000
)
settings.load_profile(os.environ.get("NANOSERVE_HYPOTHESIS", "domain"))
