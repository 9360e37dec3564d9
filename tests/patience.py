"""How long any test waits for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 120.0
"""Seconds after which a test gives up; what it waits for takes a few, also on a busy machine."""
