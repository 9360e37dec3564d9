"""The process of an engine as its parent sees it."""

from __future__ import annotations

import asyncio
import sys

import psutil
import pytest

from nanoserve.adapters.engine_process.client.process import EngineProcess

SLEEPS = (sys.executable, "-P", "-c", "import time; time.sleep(600)")


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_it_has_ended_also_where_the_wait_for_its_end_is_cancelled(turns: int) -> None:
    process = await EngineProcess.launch(SLEEPS)
    killing = asyncio.create_task(process.kill())
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert not psutil.pid_exists(process.pid)
