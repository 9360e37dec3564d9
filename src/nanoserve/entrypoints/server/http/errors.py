"""Turns an exception into the client's error: a status, headers, and `{"error": {...}}` in the shape of OpenAI's API.

Every error passes through `classify`. Unexpected exceptions become a 500 without their message; they are logged here, with their
traceback.
"""

from __future__ import annotations

import http
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import attrs
import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from nanoserve.ports import errors
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError, NanoserveError, ServiceUnavailableError

_LONGEST_MESSAGE: Final = 1000
_ROUTING_MESSAGES: Final = {
    404: "There is no such route; GET /openapi.json lists them.",
    405: "This route does not take that method; the Allow header lists those it takes.",
    413: "The body is larger than this server accepts.",
}
_MISSING: Final = {
    "moderation": "/v1/moderations",
    "audio": "/v1/audio /v1/realtime",
    "images": "/v1/images /v1/videos",
    "files for searches": "/v1/vector_stores",
    "batches of this form": "/v1/messages/batches",
    "training": "/v1/fine_tuning",
    "compaction": "/v1/responses/compact",
    "stored conversations but responses": "/v1/assistants /v1/threads /v1/conversations",
}
_NOT_SERVED: Final = {path: what for what, paths in _MISSING.items() for path in paths.split()}
"""Services that this server does not have, by the beginnings of the paths at which other servers have them."""
_KINDS: Final = {int: "a whole number", bool: "true or false"}
_KEPT: Final = ("/v1/files", "/v1/batches")
"""Services that are there only where there is a folder for them."""


def _bounded(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


@attrs.frozen(kw_only=True)
class Problem:
    """An exception as every protocol can tell it; `kind` is OpenAI's error type, `sizes` are those of `PromptTooLongError`."""

    status: int
    kind: str = attrs.field()
    message: str = attrs.field(default="", converter=_bounded)
    param: str | None = None
    code: str | None = None
    sizes: tuple[int, int, int] | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @kind.default
    def _kind_of_status(self) -> str:
        return "invalid_request_error" if self.status < 500 else "server_error"


class ErrorShape(Protocol):
    """How a protocol writes errors: a msgspec struct, made from a problem."""

    @classmethod
    def of(cls, problem: Problem) -> Any:
        """The body of an answer that is not a success."""
        ...


class ErrorDetail(msgspec.Struct):
    """The error; `param` names the field at fault, `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail

    @classmethod
    def of(cls, problem: Problem) -> ErrorBody:
        """As OpenAI writes it."""
        return cls(ErrorDetail(problem.message, problem.kind, problem.param, problem.code))


Shapes = Mapping[str, type[ErrorShape]]
"""Shapes of errors of the protocols that have their own, by the prefix of their paths, or by a header that their clients send to any path."""
NO_SHAPES: Final[Shapes] = {}


class RequestError(NanoserveError):
    """An error of HTTP's own: a status with everything that goes with it, as in `Problem`."""

    def __init__(self, status: int, message: str, **details: Any) -> None:
        super().__init__(message)
        self.problem = Problem(status=status, message=message, **details)


_MEANINGS: Final[tuple[tuple[type[NanoserveError], int, str], ...]] = (
    (BadValueError, 400, "invalid_value"),
    (errors.PromptTooLongError, 400, "context_length_exceeded"),
    (errors.RequestTooLargeError, 400, "context_length_exceeded"),
    (errors.UnknownModelError, 404, "model_not_found"),
    (errors.QueueFullError, 503, "overloaded"),
    (errors.OverloadedError, 503, "overloaded"),
    (errors.DrainingError, 503, "draining"),
    (errors.EngineLoadingError, 503, "engine_loading"),
    (ServiceUnavailableError, 503, "unavailable"),
    (errors.ConflictError, 409, "conflict"),
    (errors.DeadlineError, 504, "deadline_exceeded"),
    (errors.EngineDiedError, 500, "engine_died"),
    (errors.StepFailedError, 500, "step_failed"),
    (errors.UnknownRequestClassError, 500, "internal_error"),
    (errors.RequestRefusedError, 400, "request_refused"),
)
"""The first that fits."""
_MESSAGES: Final[Mapping[type[Exception], str]] = {
    errors.StepFailedError: "A step of the engine failed; its log says why.",
    errors.UnknownRequestClassError: "The server's request classes differ.",
}
"""The messages of errors whose own are for the log alone."""


def classify(error: Exception) -> Problem:
    """The error that the client gets for an exception; an unexpected one is logged."""
    problem = _classify_ours(error) if isinstance(error, NanoserveError) else _classify_litestars(error)
    if problem is None:
        structlog.get_logger().error("internal error", error=type(error).__name__, exc_info=error)
        message = "The server failed on this request; its log says why."
        problem = Problem(status=500, code="internal_error", message=message)
    return problem


def shape_of(path: str, shapes: Shapes, headers: Iterable[tuple[bytes, bytes]] = ()) -> type[ErrorShape]:
    """The error shape of a request, which is OpenAI's where `shapes` has no other."""
    sent = {name.decode("latin-1") for name, _ in headers}
    signs = (sign for sign in shapes if path.startswith(sign) or sign in sent)
    return next((shapes[sign] for sign in signs), ErrorBody)


async def send_problem(
    problem: Problem, scope: Scope, receive: Receive, send: Send, shapes: Shapes = NO_SHAPES
) -> None:
    """A whole answer of the layers around Litestar, in the shape of its path."""
    shape, headers = shape_of(scope["path"], shapes, scope["headers"]), dict(problem.headers)
    body = msgspec.json.encode(shape.of(problem))
    answer = ASGIResponse(body=body, headers=headers, status_code=problem.status, media_type=MediaType.JSON)
    await answer(scope, receive, send)


def error_response_in(
    shapes: Shapes, *, keeps_files: bool
) -> Callable[[Request[Any, Any, Any], Exception], Response[Any]]:
    """Litestar's exception handler, in OpenAI's shape or in that of the path's own protocol."""

    def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        path = request.scope["path"]
        problem = _routed(classify(error), path, keeps_files=keeps_files)
        if isinstance(error, ValidationException) and problem.param is not None:
            problem = attrs.evolve(problem, message=_wrong(request, problem.param))
        body, headers = shape_of(path, shapes, request.scope["headers"]).of(problem), dict(problem.headers)
        return Response(body, status_code=problem.status, headers=headers, media_type=MediaType.JSON)

    return respond


def _routed(problem: Problem, path: str, *, keeps_files: bool) -> Problem:
    """The problem of a route that other servers have, with the feature that is missing here."""
    if problem.code not in {"not_found", "method_not_allowed"}:
        return problem
    if not keeps_files and f"{path}/".startswith(tuple(f"{each}/" for each in _KEPT)):
        message = f"{path} is served only where files are kept: start the server with --batch-dir FOLDER."
        return attrs.evolve(problem, message=message, code="route_not_served")
    missing = next((what for route, what in _NOT_SERVED.items() if f"{path}/".startswith(f"{route}/")), None)
    if missing is None:
        return problem
    message = (
        f"{path} is not served: this server generates text and has no {missing}. {_ROUTING_MESSAGES[404]}"
    )
    return Problem(status=404, message=message, code="route_not_served")


def _classify_ours(error: NanoserveError) -> Problem | None:
    if isinstance(error, RequestError):
        return error.problem
    for kind, status, code in _MEANINGS:
        if isinstance(error, kind):
            seconds = getattr(error, "retry_after", 1)
            return Problem(
                status=status,
                code=code,
                message=_MESSAGES.get(kind) or str(error),
                sizes=getattr(error, "sizes", None),
                param=getattr(error, "parameter", "model" if kind is errors.UnknownModelError else None),
                headers={"retry-after": str(max(1, seconds))} if status == 503 else {},
            )
    return None


def _classify_litestars(error: Exception) -> Problem | None:
    if not isinstance(error, HTTPException):
        return None
    status = 400 if error.status_code == 422 else error.status_code
    if status >= 500:
        return None
    phrase = http.HTTPStatus(status).phrase
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else None
    # The parameter of the path or the query.
    param = str(first["key"]) if isinstance(first, dict) and "key" in first else None
    message = _ROUTING_MESSAGES.get(status, f"{phrase}.")
    code = phrase.lower().replace(" ", "_").replace("request_entity", "body")
    return Problem(status=status, message=message, param=param, code=code, headers=error.headers or {})


def _wrong(request: Request[Any, Any, Any], name: str) -> str:
    """A message with the declaration of a parameter, and the value that came."""
    given = request.query_params.get(name)
    if given is None:
        return f"{name}: is required"
    declared = request.route_handler.parsed_fn_signature.parameters.get(name)
    types, bounds = (declared.annotation, declared.kwarg_definition) if declared else (str, None)
    least, most = getattr(bounds, "ge", None), getattr(bounds, "le", None)
    choices = typing.get_args(types) if typing.get_origin(types) is typing.Literal else ()
    what = " or ".join(choices) or _KINDS.get(types, "of another type")
    what += "".join(
        f" {word} {bound}" for word, bound in (("from", least), ("to", most)) if bound is not None
    )
    return f"{name}: must be {what}, got {shown(given)}"
