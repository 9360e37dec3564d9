"""`nanoserve`, with the engine's process of `faulty_engine` in the place of the usual one: `python -m ... serve`.

At its end it prints how many objects are frozen for the garbage collector.
"""

from __future__ import annotations

import atexit
import gc
import sys

from tests.process import engine_swap

FROZEN = "objects that are not looked at: "


def _say() -> None:
    sys.stderr.write(f"{FROZEN}{gc.get_freeze_count()}\n")


if __name__ == "__main__":
    atexit.register(_say)
    engine_swap.run("tests.chaos.faulty_engine")
