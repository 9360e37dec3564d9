"""The parts of every HTTP process of a server, and its settings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import attrs
import structlog
import uvicorn

from nanoserve.entrypoints.app.live_feed import LiveFeed, Redaction
from nanoserve.entrypoints.app.orders import Client, ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.assembly import TextParts
from nanoserve.entrypoints.compose.bootstrap import begin_check, clock, trace_format
from nanoserve.entrypoints.compose.choices import make_classes
from nanoserve.entrypoints.compose.config.command_settings import AnswerSettings, LogSettings, TraceSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.compose.counting import Counting, SharedCounting
from nanoserve.entrypoints.server.app import Server
from nanoserve.entrypoints.server.batches.running import BatchService
from nanoserve.entrypoints.server.http.access_log import REASONS
from nanoserve.entrypoints.server.http.limits import REFUSALS, BoundedConfig
from nanoserve.entrypoints.server.http.security import ANONYMOUS, KeyRing
from nanoserve.entrypoints.server.http.sse import unless
from nanoserve.entrypoints.server.sockets import host_names, model_names
from nanoserve.entrypoints.server.watch.tracing import start_tracing
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_link import Resume
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.grammar import ANY_WHITESPACE, BOUNDED_WHITESPACE

T = TypeVar("T")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class LeavingError(Exception):
    """A signal came while something was waited for."""


class Signals:
    """Signals that the process got: `leave` is set by SIGTERM or SIGINT, `now` by a second one."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.now = asyncio.Event()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them in the running loop."""
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self.note)
        try:
            yield
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)

    def note(self) -> None:
        """One has come."""
        (self.now if self.leave.is_set() else self.leave).set()

    async def unless_leaving(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled, and `LeavingError` raised, when a signal comes first."""
        return await unless(self.leave.wait(), work, LeavingError)


_POLL: Final = 0.02


async def drain(server: Server, living: Callable[[], int], *, patience: float, now: asyncio.Event) -> bool:
    """See `until_idle`. From the first moment on `/readyz` and every new order are answered with 503.

    A paused engine is resumed, so that waiting requests are answered, unless it cannot be resumed.
    """
    server.health.is_draining = True
    service = server.service
    if service is not None:
        service.reservations.begin_drain()

    def all_living() -> int:
        return living() or (0 if service is None else service.reservations.living)

    with contextlib.suppress(NanoserveError):
        if server.engine.steering.paused:
            await server.engine.steer(Resume())
    if server.engine.steering.asleep or server.engine.steering.lost:
        patience = 0
    return await until_idle(all_living, patience=patience, now=now)


async def until_idle(living: Callable[[], int], *, patience: float, now: asyncio.Event) -> bool:
    """Wait until nothing lives any more; False if patience came to an end before, or was called off (`now`)."""
    log = structlog.get_logger()
    log.info("leaving: no more requests are taken", living=living(), patience=patience)
    deadline = time.monotonic() + patience
    while living():
        if now.is_set() or time.monotonic() >= deadline:
            log.warning("requests are ended unfinished", living=living(), asked=now.is_set())
            return False
        await asyncio.sleep(_POLL)
    return True


_FAREWELL: Final = 2
"""Seconds that connections are given to end once everything that was accepted has been answered."""


class HttpServer:
    """One application on some sockets; it counts refusals (`rejected`) and open `connections`, by itself unless others share the count."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        settings: ServeSettings,
        rejected: Counts,
        connections: Counts | None = None,
    ) -> None:
        config = BoundedConfig(app, settings, rejected, connections or Counts())
        self._server = uvicorn.Server(config)
        self._sockets = list(sockets)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on; as uvicorn's `serve`, but for signals, which are left alone."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(self._sockets)
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        await self._server.main_loop()
        await self._server.shutdown(self._sockets)

    async def stop(self, *, now: bool = False, patience: float = _FAREWELL) -> None:
        """Stop listening, let answers end within `patience` (not if `now`), and return when all is closed."""
        self._server.config.timeout_graceful_shutdown = math.ceil(patience)
        self._server.should_exit = True
        self._server.force_exit = now
        if self._task is not None:
            await self._task


_LOGGERS: Final = ("uvicorn.error", "asyncio")


class _Bridge(logging.Handler):
    """Hands records on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record on, with its traceback where it has one."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), library=record.name, exc_info=record.exc_info or None
        )


def bridge_library_logs() -> None:
    """To be called once; idempotent."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [_Bridge()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False


_WHITESPACE: Final = {"none": "", "bounded": BOUNDED_WHITESPACE, "any": ANY_WHITESPACE}


@attrs.frozen(kw_only=True)
class Serving:
    """Everything that `nanoserve serve` was started with."""

    engine: EngineSettings
    serve: ServeSettings
    answers: AnswerSettings = attrs.field(factory=AnswerSettings)
    log: LogSettings
    trace: TraceSettings = attrs.field(factory=TraceSettings)

    @classmethod
    def of(cls, configuration: Configuration) -> Serving:
        """The server's part of a configuration; it logs each request, unless a source says otherwise."""
        is_level_given = bool(configuration.given(["log_level"]))
        return cls(
            engine=configuration.engine,
            serve=configuration.serve,
            answers=configuration.answers,
            log=configuration.log if is_level_given else attrs.evolve(configuration.log, log_level="info"),
            trace=configuration.trace,
        )

    @property
    def class_names(self) -> list[str]:
        """The request classes that there are."""
        return [each.name for each in make_classes(self.engine.request_classes)]


def make_server(
    settings: Serving,
    keys: KeyRing,
    engine: EngineClient,
    sockets: Sequence[socket.socket],
    counting: Counting,
    *,
    batches: BatchService | None = None,
) -> Server:
    """A server without its service, which `open_service` adds."""
    access, listen, with_words = settings.serve.access, settings.serve.listen, settings.trace.trace_words
    now, name = clock(), model_names(settings.engine, listen)[0]
    return Server(
        engine=engine,
        clock=now,
        settings=settings.serve,
        keys=keys,
        model_name=name,
        feed=LiveFeed(engine, now, trace_format(), model=name, with_words=with_words),
        redaction=Redaction(trace_format()) if with_words and len(keys) > 1 else None,
        host_names=host_names(access, listen, sockets, has_keys=bool(len(keys))),
        tracing=None if listen.otlp_endpoint is None else start_tracing(listen.otlp_endpoint),
        counting=counting,
        batches=batches,
    )


def open_service(settings: Serving, server: Server, text: TextParts, owner: str = "") -> TextService:
    """Take requests from now on; `owner` is as in `TextService`."""
    service = TextService(
        engine=server.engine,
        tokenizer=text.tokenizer,
        template=text.template,
        eos_token_ids=text.eos_token_ids,
        clock=server.clock,
        settings=_service_settings(settings, text),
        measurements=server.measurements,
        reservations=server.counting.reservations,
        owner=owner,
        dialect=text.dialect,
        check_constraint=begin_check,
    )
    gc.collect()
    gc.freeze()  # what lives by now lives for good; looking at it again would hold up every client
    server.open(service)
    return service


def open_batches(settings: ServeSettings, keys: KeyRing) -> BatchService | None:
    """The files and batches that there are, for the one process that keeps them; raises `BadValueError`."""
    if settings.batches.batch_dir is None:
        if settings.batches.batch_lines is not None:
            raise BadValueError("batch_lines", "is for batches; give --batch-dir too")
        return None
    clients = [key.client for key in keys] or [Client()]
    return BatchService(settings.batches, {each.owner: each for each in clients})


def shared_counting(settings: Serving, keys: KeyRing, descriptor: int | None = None) -> SharedCounting:
    """The counts that all HTTP processes of a server share; without the table's `descriptor` a new one is made."""
    reasons = sorted({*REASONS.values(), *REFUSALS})
    digests = [ANONYMOUS, *keys.digests]
    processes = (settings.serve.listen.http_workers or 1) + 1
    return SharedCounting(settings.class_names, reasons, digests, processes=processes, descriptor=descriptor)


def _service_settings(settings: Serving, text: TextParts) -> ServiceSettings:
    bounds = settings.serve.bounds
    return ServiceSettings(
        model_names=model_names(settings.engine, settings.serve.listen),
        model_aliases=settings.serve.listen.model_alias,
        defaults=text.defaults.values,
        defaults_origin=text.defaults.origin,
        tokenizer_facts=text.tokenizer_facts,
        template_variables=text.template_variables,
        max_waiting_requests=bounds.max_waiting_requests,
        max_waiting_tokens=bounds.max_waiting_tokens,
        queue_timeout=bounds.queue_timeout,
        request_timeout=bounds.request_timeout,
        whitespace=_WHITESPACE[bounds.json_whitespace],
        ping_interval=bounds.ping_interval,
        pooler=text.pooler,
    )
