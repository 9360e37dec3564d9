"""From an exception to what the client sees: a status, headers, and `{"error": {...}}` in the shape of OpenAI's API.

Every error passes through `classify`. Exceptions that nobody raised on purpose become a 500 whose message says nothing
of them; they are logged here, with their traceback.
"""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException

from nanoserve.ports.errors import (
    BadValueError,
    DeadlineError,
    DrainingError,
    EngineDiedError,
    EngineLoadingError,
    NanoserveError,
    OverloadedError,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    RequestTooLargeError,
    ServiceUnavailableError,
    StepFailedError,
    UnknownModelError,
    UnknownRequestClassError,
)

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
_LONGEST_MESSAGE: Final = 1000
_ROUTING_MESSAGES: Final = {
    404: "There is no such route; GET /openapi.json lists them.",
    405: "This route does not take that method; the Allow header lists those it takes.",
    413: "The body is larger than this server accepts.",
}


class ErrorDetail(msgspec.Struct):
    """What went wrong; `param` names the field at fault, `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class RequestError(NanoserveError):
    """An error of HTTP's own: a status with everything that goes with it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


@attrs.frozen(kw_only=True)
class Problem:
    """An exception as every protocol can tell it; `kind` is OpenAI's error type."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def body(self) -> ErrorBody:
        """In OpenAI's shape."""
        return ErrorBody(ErrorDetail(self.message, self.kind, self.param, self.code))


def _means(status: int, code: str, *, param: str | None = None, message: str = "") -> Problem:
    kind = INVALID if status < 500 else SERVER
    return Problem(status=status, kind=kind, message=message, param=param, code=code)


_MEANINGS: Final[tuple[tuple[type[NanoserveError], Problem], ...]] = (
    (BadValueError, _means(400, "invalid_value")),
    (PromptTooLongError, _means(400, "context_length_exceeded")),
    (RequestTooLargeError, _means(400, "context_length_exceeded")),
    (UnknownModelError, _means(404, "model_not_found", param="model")),
    (QueueFullError, _means(503, "overloaded")),
    (OverloadedError, _means(503, "overloaded")),
    (DrainingError, _means(503, "draining")),
    (EngineLoadingError, _means(503, "engine_loading")),
    (ServiceUnavailableError, _means(503, "unavailable")),
    (DeadlineError, _means(504, "deadline_exceeded")),
    (EngineDiedError, _means(500, "engine_died")),
    (StepFailedError, _means(500, "step_failed", message="A step of the engine failed; its log says why.")),
    (UnknownRequestClassError, _means(500, "internal_error", message="The server's request classes differ.")),
    (RequestRefusedError, _means(400, "request_refused")),
)
"""The first that fits, with its own message where it has one and the error's otherwise."""


def classify(error: Exception) -> Problem:
    """What an exception means to the client; one that nobody raised on purpose is logged."""
    problem = _classify_ours(error) if isinstance(error, NanoserveError) else _classify_litestars(error)
    if problem is None:
        structlog.get_logger().error("internal error", error=type(error).__name__, exc_info=error)
        problem = Problem(
            status=500,
            kind=SERVER,
            message="The server failed on this request; its log says why.",
            code="internal_error",
        )
    return attrs.evolve(problem, message=_bounded(problem.message))


def wire_error(error: Exception) -> tuple[int, dict[str, str], ErrorBody]:
    """Status, headers and body in OpenAI's shape; the body also stands for an error in the middle of a stream."""
    problem = classify(error)
    return problem.status, dict(problem.headers), problem.body


def encoded(body: ErrorBody) -> bytes:
    """As JSON."""
    return msgspec.json.encode(body)


def error_response(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for every route that speaks OpenAI's shape."""
    problem = classify(error)
    return Response(
        encoded(problem.body),
        status_code=problem.status,
        headers=dict(problem.headers),
        media_type=MediaType.JSON,
    )


def _classify_ours(error: NanoserveError) -> Problem | None:
    if isinstance(error, RequestError):
        return Problem(
            status=error.status,
            kind=error.kind,
            message=str(error),
            param=error.param,
            code=error.code,
            headers=error.headers,
        )
    problem = next((each for kind, each in _MEANINGS if isinstance(error, kind)), None)
    if problem is None:
        return None
    problem = attrs.evolve(problem, message=problem.message or str(error))
    if isinstance(error, BadValueError):
        return attrs.evolve(problem, param=error.parameter)
    if problem.status == 503:
        seconds = error.retry_after if isinstance(error, ServiceUnavailableError) else 1
        return attrs.evolve(problem, headers={"retry-after": str(max(1, seconds))})
    return problem


def _classify_litestars(error: Exception) -> Problem | None:
    if not isinstance(error, HTTPException):
        return None
    status = 400 if error.status_code == 422 else error.status_code
    if status >= 500:
        return None
    phrase = http.HTTPStatus(status).phrase
    return Problem(
        status=status,
        kind=INVALID,
        message=_validation_message(error) or _ROUTING_MESSAGES.get(status, f"{phrase}."),
        param=_parameter(error),
        code=phrase.lower().replace(" ", "_").replace("request_entity", "body"),
        headers=error.headers or {},
    )


def _parameter(error: HTTPException) -> str | None:
    """The path or query parameter that Litestar found to be wrong."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else None
    return str(first["key"]) if isinstance(first, dict) and "key" in first else None


def _validation_message(error: HTTPException) -> str | None:
    if not isinstance(error, ValidationException):
        return None
    return f"{_parameter(error) or 'a parameter'}: has the wrong type or is missing"


def _bounded(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"
