"""The OpenAPI document: Litestar's, completed by the bodies, the errors and the keys, which it does not see.

It is for programs: the pages that Litestar makes of it for people load scripts from other hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from litestar import Litestar, Response, get
from litestar.di import NamedDependency
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute

from nanoserve.entrypoints.compose.process import installed_release
from nanoserve.entrypoints.server.http.bodies import BODY_KEY
from nanoserve.entrypoints.server.http.errors import ErrorBody, Shapes, shape_of
from nanoserve.entrypoints.server.http.security import OPEN_PATHS

_PREFIX: Final = "#/components/schemas/"
_ERRORS: Final = {
    "400": "A value is missing, of the wrong type or out of range; `param` names it",
    "401": "No key, or one that is not known",
    "404": "No such model or object",
    "405": "The route does not take this method",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "421": "The Host header names another server",
    "429": "The key has used up its requests; see Retry-After",
    "500": "The server failed",
    "503": "Full, loading or leaving; see Retry-After",
    "504": "The request's time was over",
}
_BODILESS: Final = ("413", "415", "429", "504")
_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class ApiDocument:
    """Made from the routes when it is first asked for, and then kept."""

    def __init__(self, routes: Sequence[Any], dependencies: Mapping[str, Any], shapes: Shapes) -> None:
        self._routes = routes
        self._dependencies = dependencies
        self._shapes = shapes

    @functools.cached_property
    def json(self) -> bytes:
        """The document."""
        return msgspec.json.encode(self._make())

    def _make(self) -> dict[str, Any]:
        paper = Litestar(
            [*self._routes],
            dependencies=dict(self._dependencies),
            openapi_config=OpenAPIConfig(
                title="nanoserve", version=installed_release(), use_handler_docstrings=True
            ),
            logging_config=None,
        )
        document: dict[str, Any] = paper.openapi_schema.to_schema()
        bodies = _bodies(paper)
        kinds = [ErrorBody, *self._shapes.values(), *(kind for _, _, kind in bodies)]
        refs, schemas = msgspec.json.schema_components(kinds, ref_template=_PREFIX + "{name}.in")
        ref_of = dict(zip(kinds, refs, strict=True))
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update({f"{name}.in": each for name, each in schemas.items()})
        components["securitySchemes"] = _SECURITY
        for path, method, kind in bodies:
            content = {"application/json": {"schema": ref_of[kind]}}
            operation = document["paths"][path][method]
            operation["requestBody"] = {"required": True, "content": content}
            if "stream" in kind.__struct_fields__:
                lines = "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
                operation["responses"]["200"]["content"][lines] = {}
        for path, item in document["paths"].items():
            for operation in item.values():
                _complete(operation, path, ref_of[shape_of(path, self._shapes)])
        return document


def _bodies(paper: Litestar) -> list[tuple[str, str, type[msgspec.Struct]]]:
    return [
        (route.path_format, method.lower(), handler.opt[BODY_KEY])
        for route in paper.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if BODY_KEY in handler.opt
        for method in handler.http_methods
    ]


def _complete(operation: dict[str, Any], path: str, error: dict[str, Any]) -> None:
    """Add the common part of routes: the keys that may call it, and its errors."""
    responses = operation.setdefault("responses", {})
    if path in OPEN_PATHS:
        responses["503"] = {**responses["200"], "description": "Not now"}
        return
    operation["security"] = [{name: []} for name in _SECURITY]
    content = {"application/json": {"schema": error}}
    for status, description in _ERRORS.items():
        if "requestBody" in operation or status not in _BODILESS:
            responses[status] = {"description": description, "content": content}


@get("/openapi.json", include_in_schema=False)
async def openapi_json(document: NamedDependency[ApiDocument]) -> Response[bytes]:
    """The document."""
    return Response(document.json, media_type="application/json")


ROUTES: Final = (openapi_json,)
