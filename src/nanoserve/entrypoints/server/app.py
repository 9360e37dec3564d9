"""The application: every route, what is injected into the handlers, and the layers around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import msgspec
from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.datastructures import State
from litestar.di import Provide
from litestar.types import ASGIApp

from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.page.files import Page, read_page
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.bodies import RULES_KEY, BodyRules
from nanoserve.entrypoints.server.http.cors import Cors
from nanoserve.entrypoints.server.http.errors import Shapes, error_response_in
from nanoserve.entrypoints.server.http.keys import Key, KeyRing
from nanoserve.entrypoints.server.http.security import Gate, RateLimits, client_of
from nanoserve.entrypoints.server.watch import about, health, live, metrics, openapi, page
from nanoserve.entrypoints.server.watch.about import About
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.entrypoints.server.watch.live import Live
from nanoserve.entrypoints.server.watch.metrics import Metrics
from nanoserve.entrypoints.server.watch.openapi import ApiDocument
from nanoserve.entrypoints.server.watch.tracing import Tracing
from nanoserve.ports.driven import Clock
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.errors import EngineLoadingError


@attrs.frozen(kw_only=True, eq=False)
class Protocols:
    """What is spoken here.

    Attributes:
        routes: the handlers of every protocol.
        error_shapes: how errors are written under a prefix of paths that has a shape of its own, and `error_bodies`
            the same for the OpenAPI document.
    """

    routes: Sequence[Any] = ()
    error_shapes: Shapes = attrs.field(factory=dict)
    error_bodies: Mapping[str, type[msgspec.Struct]] = attrs.field(factory=dict)


@attrs.define(kw_only=True, eq=False)
class Server:
    """What the routes are served with; `service` is None until the model is loaded, `ui` whether there is a page.

    `host_names` are those that clients may call the server by, besides this machine's own; with None any will do.
    """

    engine: EngineClient
    measurements: Measurements
    health: Health
    metrics: Metrics
    live: Live
    keys: KeyRing
    clock: Clock
    bounds: BoundSettings
    cors_origins: tuple[str, ...] = ()
    host_names: Collection[str] | None = None
    rate_limit: float | None = None
    tracing: Tracing | None = None
    service: TextService | None = None
    ui: bool = True

    def open(self, service: TextService) -> None:
        """Take requests from now on."""
        self.service = service
        self.health.is_open = True

    def _the_service(self) -> TextService:
        if self.service is None:
            raise EngineLoadingError("the server is still loading the model; try again later", retry_after=5)
        return self.service

    def dependencies(self, document: ApiDocument | None = None) -> dict[str, Provide]:
        """What handlers can ask for, by the name of their argument."""
        about_server = About(engine=self.engine, bounds=attrs.asdict(self.bounds))
        return {
            "service": _provide(self._the_service, TextService),
            "client": Provide(client_of, sync_to_thread=False),
            "engine": _provide(lambda: self.engine, EngineClient),
            "health": _provide(lambda: self.health, Health),
            "metrics": _provide(lambda: self.metrics, Metrics),
            "about": _provide(lambda: about_server, About),
            "document": _provide(lambda: document, ApiDocument),
            "live": _provide(lambda: self.live, Live),
            "page": _provide(read_page, Page),
        }

    def guarded(
        self,
        app: ASGIApp,
        *,
        shapes: Shapes | None = None,
        readable: Collection[str] = (),
        host_names: Collection[str] | None = None,
    ) -> AccessLog:
        """An application behind every layer: the log, CORS and the gate; `readable` paths need no key."""
        app = Gate(
            app=app,
            keys=self.keys,
            limits=RateLimits(self.clock.now),
            anonymous=Key(digest=b"", client=Client(), rate_limit=self.rate_limit),
            shapes=shapes or {},
            readable=readable,
            names=host_names,
        )
        if self.cors_origins:
            app = Cors(app, self.cors_origins)
        return AccessLog(app, self.measurements.books, quiet=readable)


def make_app(server: Server, protocols: Protocols) -> AccessLog:
    """The application for clients."""
    routes = [*health.ROUTES, *metrics.ROUTES, *about.ROUTES, *protocols.routes]
    if server.ui:
        routes += live.ROUTES
    document = ApiDocument(routes, server.dependencies(), protocols.error_bodies)
    own = [*openapi.ROUTES, *(page.ROUTES if server.ui else ())]
    app = _litestar([*routes, *own], server, server.dependencies(document), protocols.error_shapes)
    return server.guarded(
        app,
        shapes=protocols.error_shapes,
        readable=read_page().paths if server.ui else (),
        host_names=server.host_names,
    )


def make_admin_app(server: Server, routes: Sequence[Any]) -> AccessLog:
    """The application for administrators."""
    return server.guarded(_litestar(routes, server, server.dependencies()))


def _litestar(
    routes: Sequence[Any], server: Server, dependencies: Mapping[str, Provide], shapes: Shapes | None = None
) -> Litestar:
    rules = BodyRules(max_depth=server.bounds.max_json_depth, strict_params=server.bounds.strict_params)
    return Litestar(
        [options_of(routes), *routes],
        dependencies=dict(dependencies),
        exception_handlers={Exception: error_response_in(shapes or {})},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=server.bounds.max_body_size,
        state=State({RULES_KEY: rules}),
        plugins=[server.tracing.plugin] if server.tracing else [],
    )


def _provide(made: Callable[[], Any], kind: type) -> Provide:
    """A provider whose type Litestar can see."""

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
