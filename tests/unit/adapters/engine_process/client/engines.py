"""Engines in real processes for tests, and clients that read them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import attrs
import psutil

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.requests import PendingReply
from nanoserve.adapters.engine_process.client.supervisor import Supervisor
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.ports.driving import EngineClient, EngineStatus
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from tests.fakes.memory_runner import expected_token
from tests.patience import PATIENCE
from tests.unit.adapters.engine_process.host import scripted_host
from tests.unit.adapters.engine_process.host.scripted_host import VOCAB

RemoteEngine = KeptEngine[Supervisor]
EngineT = TypeVar("EngineT", bound=EngineClient)
SCRIPTED = (sys.executable, "-m", scripted_host.__name__)


def scripted_engine(**options: Any) -> RemoteEngine:
    settings = EngineSettings(
        **{
            name: options.pop(name)
            for name in ("model", "num_kv_blocks", "max_num_seqs", "paranoid", "park_spare")
            if name in options
        }
    )
    options = {"command": SCRIPTED, "reaction_timeout": 2 * PATIENCE, **options}
    return remote_engine(settings, **options)


@contextlib.asynccontextmanager
async def started(engine: EngineT) -> AsyncIterator[EngineT]:
    """The engine, ready; stopped in any case."""
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.005)


def pid_of(engine: EngineClient) -> int:
    assert engine.facts is not None
    return engine.facts.pid


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def until_restarted(engine: RemoteEngine, times: int) -> None:
    await until(lambda: engine.restarts == times and engine.status is EngineStatus.READY)


def request(
    name: str, prompt: tuple[int, ...] = (1, 2, 3), *, stream: bool = True, **sampling: Any
) -> Request:
    fields = ("deadline", "queue_timeout")
    more = {each: sampling.pop(each) for each in fields if each in sampling}
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**{"max_tokens": 20, "temperature": 0.0} | sampling),
        stream=stream,
        **more,
    )


def expected(prompt: tuple[int, ...], count: int = 20) -> list[int]:
    """What the scripted model answers."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(expected_token(tokens, 0, VOCAB - 100))
    return tokens[len(prompt) :]


@attrs.define
class Answer:
    """What a client has read."""

    token_ids: dict[int, list[int]] = attrs.field(factory=dict)
    texts: dict[int, str] = attrs.field(factory=dict)
    reasons: dict[int, FinishReason] = attrs.field(factory=dict)
    error: NanoserveError | None = None
    reads: int = 0

    @property
    def ids(self) -> list[int]:
        return self.token_ids.get(0, [])


async def read(
    reply: PendingReply, answer: Answer | None = None, pause: Awaitable[Any] | None = None
) -> Answer:
    """Read a reply to its end."""
    answer = Answer() if answer is None else answer
    try:
        async for batch in reply.events():
            assert batch
            answer.reads += 1
            for event in batch:
                if isinstance(event, TokensGenerated):
                    assert event.index not in answer.reasons, "an answer goes on after its end"
                    answer.token_ids.setdefault(event.index, []).extend(event.token_ids)
                    answer.texts[event.index] = answer.texts.get(event.index, "") + event.text
                    if event.finish_reason is not None:
                        answer.reasons[event.index] = event.finish_reason
    except NanoserveError as error:
        answer.error = error
    return answer


def balanced(engine: EngineClient) -> bool:
    """Whether the ledger holds."""
    state = engine.state
    return state is None or state.accepted == sum(state.finished.values()) + state.running + state.waiting
