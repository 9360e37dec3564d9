"""The parts that every HTTP process of a server is made of, and what it was started with."""

from __future__ import annotations

import gc
import socket
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.app.live_feed import LiveFeed, Redaction
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.assembly import TextParts
from nanoserve.entrypoints.compose.bootstrap import begin_check, clock, trace_format
from nanoserve.entrypoints.compose.choices import make_classes
from nanoserve.entrypoints.compose.config import EngineSettings, LogSettings, ServeSettings
from nanoserve.entrypoints.compose.config.command_settings import AnswerSettings, TraceSettings
from nanoserve.entrypoints.compose.counting import Counting, SharedCounting
from nanoserve.entrypoints.server.app import Server
from nanoserve.entrypoints.server.http.access_log import REASONS
from nanoserve.entrypoints.server.http.limits import REFUSALS
from nanoserve.entrypoints.server.http.security import ANONYMOUS, KeyRing
from nanoserve.entrypoints.server.sockets import host_names, model_names
from nanoserve.entrypoints.server.watch.tracing import start_tracing
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.grammar import ANY_WHITESPACE, BOUNDED_WHITESPACE

_WHITESPACE: Final = {"none": "", "bounded": BOUNDED_WHITESPACE, "any": ANY_WHITESPACE}


@attrs.frozen(kw_only=True)
class Serving:
    """Everything that `nanoserve serve` was started with."""

    engine: EngineSettings
    serve: ServeSettings
    answers: AnswerSettings = attrs.field(factory=AnswerSettings)
    log: LogSettings
    trace: TraceSettings = attrs.field(factory=TraceSettings)

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


def shared_counting(settings: Serving, keys: KeyRing, descriptor: int | None = None) -> SharedCounting:
    """What all HTTP processes of a server count together; without the table's `descriptor` a new one is made."""
    reasons = sorted({*REASONS.values(), *REFUSALS})
    digests = [ANONYMOUS, *keys.digests]
    processes = settings.serve.listen.http_workers + 1
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
    )
