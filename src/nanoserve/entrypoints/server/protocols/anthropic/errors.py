"""Errors in the shape of Anthropic's interface: the same problems, told otherwise."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec
from litestar import MediaType, Request, Response
from msgspec import Struct

from nanoserve.entrypoints.app.request_facts import CURRENT
from nanoserve.entrypoints.server.http.errors import Problem, classify

T = TypeVar("T")

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorDetail(Struct):
    """What went wrong; the message names the field at fault."""

    type: str
    message: str


class ErrorBody(Struct, kw_only=True):
    """The body of every answer that is not a success, and the event of a stream that broke."""

    type: Literal["error"] = "error"
    error: ErrorDetail


def error_body(problem: Problem) -> bytes:
    """A problem as JSON in Anthropic's shape."""
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    detail = ErrorDetail(_TYPES.get(problem.status, other), problem.message)
    return msgspec.json.encode(ErrorBody(error=detail))


def error_response(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for the routes that speak this shape."""
    problem = classify(error)
    answer = Response(
        error_body(problem),
        status_code=problem.status,
        headers=dict(problem.headers),
        media_type=MediaType.JSON,
    )
    return with_request_id(answer)


def with_request_id(answer: Response[T]) -> Response[T]:
    """The answer under the request's id, in the header where Anthropic's clients look for it."""
    if (facts := CURRENT.get()) is not None:
        answer.set_header("request-id", facts.request_id)
    return answer
