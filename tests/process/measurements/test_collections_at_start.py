"""Garbage is not collected while torch is imported, and is again afterwards; what was imported is never looked through again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, sys

from nanoserve.entrypoints.compose import bootstrap
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings

if "off" in sys.argv:
    gc.disable()
gc.collect()
counts = []
gc.callbacks.append(lambda phase, about: counts.append(len(gc.get_objects(generation=0))))
if "preload" in sys.argv:
    bootstrap.preload()
else:
    bootstrap.survey(EngineSettings(device="cpu"))
collections, torch, frozen = len(counts), "torch" in sys.modules, gc.get_freeze_count()
print(json.dumps([collections, max(counts, default=0), torch, gc.isenabled(), frozen > 100_000]))
"""


@pytest.mark.parametrize(
    ("given", "is_enabled", "is_frozen"),
    [(("preload",), True, True), (("survey",), True, False), (("survey", "off"), False, False)],
)
def test_imports_are_not_looked_through(given: tuple[str, ...], is_enabled: bool, is_frozen: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *given], check=True, capture_output=True, text=True)
    collections, most_young, torch, enabled, frozen = json.loads(done.stdout)
    assert torch
    assert (enabled, frozen) == (is_enabled, is_frozen)
    assert collections < 20
    assert most_young < 50_000 or not frozen
