"""How long a rank waits for another one that is stuck, and what the first one says of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange
from nanoserve.adapters.pytorch.parallel import gloo
from nanoserve.adapters.pytorch.parallel.gloo import GlooRanks, open_listener
from nanoserve.ports.errors import StepFailedError


@attrs.define
class Seat:
    """A rank that exchanges nothing over the host."""

    rank: int
    size: int = 3
    waits: bool = False

    all_reduce: Any = None
    all_gather: Any = None


def limits(rank: int) -> list[int]:
    """Nanoseconds that kernels of a rank wait: while ranks get ready, and when they serve."""
    sizes = {"max_tokens": 2, "hidden": 8, "max_logits": 2, "vocab_size": 9}
    exchange = Exchange(Seat(rank), Seat, **sizes, dtype=torch.float32, device=torch.device("cpu"))
    ready = int(exchange._words[1])
    exchange.start_serving()
    return [ready, int(exchange._words[1])]


def test_the_first_rank_is_the_first_to_miss_one_by_a_wide_margin() -> None:
    first, *others = map(limits, range(3))
    for other in others:
        assert all(theirs >= 2 * own for own, theirs in zip(first, other, strict=True))


def test_a_rank_that_is_stuck_is_missed_with_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "MOST_SECONDS", 0.01)
    listener, port = open_listener()
    first, stuck = GlooRanks(0, 2), GlooRanks(1, 2)
    meeting = threading.Thread(target=stuck.meet, args=(port,))
    meeting.start()
    with listener:
        first.meet(port, listener)
    meeting.join()
    with pytest.raises(StepFailedError, match="has not answered for"):
        first.all_gather(torch.ones(3))


ENDS_AT_ONCE = """
import os

import torch

from nanoserve.adapters.pytorch.parallel.gloo import GlooRanks, open_listener


class AtTheEnd:
    def __del__(self, listdir=os.listdir, open=os.open, read=os.read):
        names = [read(open(f"/proc/self/task/{each}/comm", 0), 64) for each in listdir("/proc/self/task")]
        print(sum(b"gloo_runloop" in each for each in names), flush=True)


def count():
    AtTheEnd()


ranks = GlooRanks(0, 1)
listener, port = open_listener()
ranks.meet(port, listener)
ranks.all_reduce(torch.ones(1))
count()
ranks.part_of_a_cycle = ranks
at_the_end = AtTheEnd()  # is forgotten when Python takes its modules apart
"""


def test_no_thread_of_a_rank_exchanges_tensors_while_python_ends() -> None:
    """It would free one without Python's lock, and end the process by SIGABRT."""
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    before, at_the_end = map(int, done.stdout.split())
    assert before > 0
    assert at_the_end == 0
