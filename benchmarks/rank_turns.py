"""What other ranks cost the first one in a turn: microseconds of its processor, with and without handing plans over.

    python -m benchmarks.rank_turns --rows 64 --ranks 2

The engine is the real one; its runner computes nothing, and a process at the other end of each connection decodes every plan.
"""

from __future__ import annotations

import argparse
import math
import socket
import sys
import time
from typing import Any

from nanoserve.adapters.engine_process.ranks.leader import LeadingRunner, Rank, Ranks
from nanoserve.adapters.engine_process.wire.codec import FrameCutter
from nanoserve.adapters.engine_process.wire.plans import Join, RankWire
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan, StepResult

TURNS, ROUNDS = 48, 100
GROUPS = (CacheGroup(layers=(0,)),)


class Idle:
    """A runner that yields token 1 for every row."""

    def submit(self, plan: StepPlan, /) -> StepPlan:
        """Nothing."""
        return plan

    def collect(self, ticket: StepPlan, /) -> StepResult:
        """One token for each row."""
        return StepResult(token_ids=[1] * len(ticket.sampling_rows))

    def counts(self) -> RunnerCounts:
        """None."""
        return RunnerCounts()


def follow(connection: socket.socket) -> None:
    """Decode every plan."""
    wire, frames = RankWire(), FrameCutter()
    while data := connection.recv(1 << 20):
        for body in frames.feed(data):
            wire.decode(body)


class Subject:
    """An engine whose rows all decode."""

    def __init__(self, runner: Any, rows: int) -> None:
        limits = Limits(
            max_num_seqs=rows,
            max_num_batched_tokens=8192,
            max_model_len=8192,
            vocab_size=100,
            block_size=16,
            num_blocks=rows * 512,
        )
        self._engine: Engine[Any] = Engine(
            limits=limits, cache_groups=GROUPS, runner=runner, clock=SystemClock()
        )
        params = SamplingParams(temperature=0.0, max_tokens=8000, ignore_eos=True)
        for number in range(rows):
            self._engine.add(Request(request_id=str(number), prompt_token_ids=(1, 2), sampling=params))
        self.best = math.inf

    def measure(self) -> None:
        """Microseconds of this process for a turn, over a few; the best is kept, because other processes only add to it."""
        began = time.process_time()
        for _ in range(TURNS):
            self._engine.turn()
        self.best = min(self.best, (time.process_time() - began) / TURNS * 1e6)


def main() -> None:
    """Print both, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--follow", type=int)
    options = parser.parse_args()
    if options.follow is not None:
        follow(socket.socket(fileno=options.follow))
        return
    joins = [Join(number, options.ranks, {}) for number in range(1, options.ranks)]
    command = (sys.executable, "-m", "benchmarks.rank_turns", "--follow")
    ranks = Ranks([Rank.launch(join.rank, command) for join in joins])
    ranks.join(joins)
    leading: LeadingRunner[Any] = LeadingRunner(Idle(), ranks, is_watchful=False)
    alone, led = (Subject(runner, options.rows) for runner in (Idle(), leading))
    for _ in range(ROUNDS):
        alone.measure()
        led.measure()
    print(
        f"{options.rows} rows: alone {alone.best:.1f} us, {options.ranks} ranks {led.best:.1f} us, "
        f"{led.best - alone.best:+.1f} us"
    )


if __name__ == "__main__":
    main()
