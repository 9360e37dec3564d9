"""The application: every route, the dependencies of handlers, and the layers around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.datastructures import State
from litestar.di import Provide
from litestar.types import ASGIApp, Receive, Scope, Send

from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.live_feed import LiveFeed, Redaction
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings, ServeSettings
from nanoserve.entrypoints.compose.counting import Counting
from nanoserve.entrypoints.page.files import INDEX, read_page
from nanoserve.entrypoints.server import loras, steering
from nanoserve.entrypoints.server.batches.routes import ENDPOINTS, batch_routes
from nanoserve.entrypoints.server.batches.running import BatchService, asking
from nanoserve.entrypoints.server.http import security
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.bodies import BOUNDS_KEY
from nanoserve.entrypoints.server.http.errors import NO_SHAPES, Shapes, error_response_in
from nanoserve.entrypoints.server.http.limits import Pacing
from nanoserve.entrypoints.server.http.sse import context_of
from nanoserve.entrypoints.server.protocols import ERROR_SHAPES, MEMBER_ROUTES, ROUTES, is_for_member
from nanoserve.entrypoints.server.protocols.responses.routes import stored_response
from nanoserve.entrypoints.server.watch import about, health, live, metrics, openapi, page
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.entrypoints.server.watch.live import Live
from nanoserve.entrypoints.server.watch.metrics import Metrics
from nanoserve.entrypoints.server.watch.openapi import ApiDocument
from nanoserve.entrypoints.server.watch.tracing import Tracing
from nanoserve.ports.driven import Clock
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.errors import EngineLoadingError


@attrs.define(kw_only=True, eq=False)
class Server:
    """The objects that routes use.

    Attributes:
        feed: the engine's steps, for viewers; `redaction` takes the words out of them, if it is not None.
        host_names: names that clients may call the server by, besides this machine's own; None allows all.
        phases: seconds that each part of the server's start took.
        service: None until the model is loaded.
        lora_folders: what clients may load; None if they may load nothing.
        batches: files and batches; None if none are kept, or another process keeps them.
    """

    engine: EngineClient
    clock: Clock
    settings: ServeSettings
    keys: security.KeyRing
    model_name: str
    feed: LiveFeed
    redaction: Redaction | None = None
    host_names: Collection[str] | None = None
    steering_keys: security.KeyRing = attrs.field(init=False)
    transfer: steering.WeightTransfer = attrs.field(init=False)
    tracing: Tracing | None = None
    counting: Counting = attrs.field(factory=Counting)
    phases: dict[str, float] = attrs.field(factory=dict)
    service: TextService | None = None
    batches: BatchService | None = None
    conversations: ConversationStore = attrs.field(init=False)
    lora_folders: loras.LoraFolders | None = attrs.field(init=False)
    measurements: Measurements = attrs.field(init=False)
    health: Health = attrs.field(init=False)
    live: Live = attrs.field(init=False)
    metrics: Metrics = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        bounds = self.settings.bounds
        spans = None if self.tracing is None else self.tracing.write_spans
        self.steering_keys = security.read_steering_keys(self.settings.access, self.keys)
        self.transfer = steering.WeightTransfer(self.engine, self.settings.access.weight_dir, self.clock.now)
        folder = self.settings.access.lora_dir
        self.lora_folders = None if folder is None else loras.LoraFolders(folder)
        self.conversations = ConversationStore(lifetime=bounds.conversation_lifetime, now=self.clock.now)
        self.measurements = Measurements(self.clock, spans=spans, tallies=self.counting.tallies)
        self.health = Health(engine=self.engine, clock=self.clock, stall_timeout=bounds.stall_timeout)
        self.live = Live(
            feed=self.feed,
            engine=self.engine,
            measurements=self.measurements,
            health=self.health,
            max_viewers=self.settings.watch.max_viewers,
            ping_interval=bounds.ping_interval,
            redaction=self.redaction,
        )
        self.metrics = Metrics(
            live=self.live, model_name=self.model_name, phases=self.phases, batches=self.batches
        )

    def open(self, service: TextService) -> None:
        """Take requests from now on."""
        self.service = service
        self.health.is_open = True

    def close(self) -> None:
        """Let the service's thread end; the engine has stopped."""
        if self.service is not None:
            self.service.tokenizing.close()

    def _the_service(self) -> TextService:
        if self.service is None:
            raise EngineLoadingError("the server is still loading the model; try again later", retry_after=5)
        return self.service

    def dependencies(self, document: ApiDocument | None = None) -> dict[str, Provide]:
        """The objects that handlers can ask for, by the name of their argument."""
        return {
            "service": _provide(self._the_service, TextService),
            "client": Provide(security.client_of, sync_to_thread=False),
            "context": Provide(context_of, sync_to_thread=False),
            "conversations": _provide(lambda: self.conversations, ConversationStore),
            "record": Provide(stored_response, sync_to_thread=False),
            "batches": _provide(lambda: self.batches, BatchService),
            "loras": _provide(lambda: self.lora_folders, loras.LoraFolders),
            "transfer": _provide(lambda: self.transfer, steering.WeightTransfer),
            "asked": Provide(steering.transfer_body),
            "engine": _provide(lambda: self.engine, EngineClient),
            "health": _provide(lambda: self.health, Health),
            "metrics": _provide(lambda: self.metrics, Metrics),
            "bounds": _provide(lambda: self.settings.bounds, BoundSettings),
            "document": _provide(lambda: document, ApiDocument),
            "live": _provide(lambda: self.live, Live),
        }

    def unguarded(
        self, routes: Sequence[Any], shapes: Shapes = NO_SHAPES, document: ApiDocument | None = None
    ) -> ASGIApp:
        """Routes without the layers around them."""
        bounds = self.settings.bounds
        return Litestar(
            [*routes],
            dependencies=self.dependencies(document),
            exception_handlers={
                Exception: error_response_in(shapes, keeps_files=self.settings.batches.batch_dir is not None)
            },
            openapi_config=None,
            logging_config=None,
            request_max_body_size=bounds.max_body_size,
            state=State({BOUNDS_KEY: bounds}),
            plugins=[self.tracing.plugin] if self.tracing else [],
        )

    def start_batches(self, rows: int) -> None:
        """Continue batches, if there are any, over an engine of this many rows."""
        if self.batches is not None:
            asked = [each for each in ROUTES if each.paths & {*ENDPOINTS}]
            self.batches.start(asking(self.unguarded(asked)), rows)

    async def stop_batches(self) -> None:
        """Ask no more of them; may be called twice."""
        if self.batches is not None:
            await self.batches.stop()

    def guarded(
        self,
        routes: Sequence[Any],
        *,
        shapes: Shapes = NO_SHAPES,
        readable: Collection[str] = (),
        names: Collection[str] | None = None,
        counting: Counting | None = None,
        own_keys: security.OwnKeys | None = None,
        document: ApiDocument | None = None,
    ) -> AccessLog:
        """Routes behind every layer: the log, CORS and the gate.

        `readable` paths need no key; None as `names` allows all, and as `counting` has the rate limits hold here alone.
        `own_keys` are for paths that change what all are answered.
        """
        access = self.settings.access
        app = self.unguarded([options_of(routes), *routes], shapes, document)
        own = Counting() if counting is None else counting
        app = security.Gate(
            app=app,
            keys=self.keys,
            limits=security.RateLimits(self.clock.now, own.buckets, own.connections.lock),
            anonymous=security.ApiKey(
                digest=security.ANONYMOUS, client=Client(), rate_limit=access.rate_limit
            ),
            shapes=shapes,
            readable=readable,
            names=names,
            own_keys=own_keys,
        )
        if access.cors_origin:
            app = security.Cors(app, access.cors_origin)
        return AccessLog(Pacing(app), self.measurements, quiet=readable)

    def for_clients(self, routes: Sequence[Any], **more: Any) -> AccessLog:
        """One that every protocol's clients call, under the names and the limits of this server."""
        steers = self.settings.access.steering
        own_keys = security.OwnKeys(steering.PATHS, steering.SHARED, self.steering_keys) if steers else None
        return self.guarded(
            routes,
            shapes=ERROR_SHAPES,
            names=self.host_names,
            counting=self.counting,
            own_keys=own_keys,
            **more,
        )


def make_app(server: Server) -> AccessLog:
    """The application for clients."""
    ui = server.settings.listen.ui
    routes = [*health.ROUTES, *metrics.ROUTES, *about.ROUTES, *ROUTES, *(live.ROUTES if ui else ())]
    if server.batches is not None:
        routes += batch_routes(server.settings.batches.max_file_size)
    document = ApiDocument(routes, server.dependencies(), ERROR_SHAPES)
    if server.lora_folders is not None:
        routes += loras.ROUTES
    routes += steering.ROUTES if server.settings.access.steering else [steering.turned_off]
    own = [*openapi.ROUTES, *(page.ROUTES if ui else page.ROUTES_WITHOUT_PAGE)]
    readable = read_page() if ui else (INDEX,)
    return server.for_clients([*routes, *own], readable=readable, document=document)


def make_member_app(server: Server, main: ASGIApp) -> ASGIApp:
    """The application of one HTTP process of several: it answers stateless routes, and `main` all others."""
    own = server.for_clients(MEMBER_ROUTES)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (own if is_for_member(scope) else main)(scope, receive, send)

    return answer


def make_metrics_app(server: Server) -> AccessLog:
    """The application for scrapers, which need no key."""
    paths = {path for each in metrics.ROUTES for path in each.paths}
    return server.guarded(metrics.ROUTES, readable=paths, names=server.host_names)


def make_admin_app(server: Server) -> AccessLog:
    """The application for administrators."""
    return server.guarded(about.ADMIN_ROUTES)


def _provide(made: Callable[[], Any], kind: type) -> Provide:
    """A provider with the type that Litestar looks for."""

    def provided() -> Any:
        return made()

    provided.__annotations__["return"] = kind
    return Provide(provided, sync_to_thread=False)


def options_of(handlers: Sequence[Any]) -> Any:
    """One more handler, which answers OPTIONS on every path of the others; register it first, or Litestar adds its own."""
    paths = sorted({path for each in handlers for path in each.paths})
    return route(paths, http_method=HttpMethod.OPTIONS, status_code=204, include_in_schema=False)(_options)


async def _options(request: Request[Any, Any, Any]) -> Response[None]:
    path = request.scope["path_template"]
    methods = next(each.methods for each in request.app.routes if each.path_format == path)
    return Response(None, headers={"allow": ", ".join(sorted(methods))})
