"""A step log of a scripted engine in this process: every turn is reported at once, nothing is sent anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nanoserve.adapters.engine_process.host.watching import Watching
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.engine import Engine
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.engine_link import Command, Logged, Report, Watch
from nanoserve.ports.trace import TraceHeader

HEADER = TraceHeader(
    release="0",
    started="",
    model="",
    device="cpu",
    dtype="none",
    block_size=4,
    num_blocks=1000,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=64,
)


class DirectLink:
    """A `Link` that hands parts of the log to a listener."""

    unread = 0

    def __init__(self) -> None:
        self.listener: Callable[[Any], None] = lambda _: None

    def receive(self, timeout: float) -> Sequence[Command]:
        return ()

    def send(self, report: Report) -> None:
        assert isinstance(report, Logged)
        self.listener(report)


class WatchedEngine:
    """The part of an `EngineClient` that is about watching."""

    def __init__(self, engine: Engine[Any], tokenizer: Tokenizer) -> None:
        self._link = DirectLink()
        self.watching = Watching(engine, self._link, tokenizer, lambda: HEADER, JsonTraceFormat())

    def watch(self, asked: Watch, listener: Callable[[Any], None]) -> None:
        self._link.listener = listener
        self.watching.start(asked)

    def unwatch(self) -> None:
        self.watching.stop()

    def tell(self, news: object) -> None:
        self._link.listener(news)

    def note_turn(self) -> None:
        if self.watching.recorder:
            self.watching.send_due(math.inf)
