"""Errors of the layers around Litestar, written straight to the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litestar import MediaType, Request, Response
from litestar.types import Send

from nanoserve.entrypoints.server.http.errors import Problem, classify, encoded

Shapes = Mapping[str, Callable[[Problem], bytes]]
"""How protocols that have an error shape of their own write it, by the prefix of their paths."""


def shaped(problem: Problem, path: str, shapes: Shapes) -> bytes:
    """The body of an error as the path's protocol writes it."""
    own = next((write for prefix, write in shapes.items() if path.startswith(prefix)), None)
    return encoded(problem.body) if own is None else own(problem)


async def send_problem(send: Send, problem: Problem, path: str = "", shapes: Shapes | None = None) -> None:
    """A whole answer, in OpenAI's shape or in that of the path's own protocol."""
    body = shaped(problem, path, shapes or {})
    headers = {**problem.headers, "content-type": "application/json", "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_response_in(shapes: Shapes) -> Callable[[Request[Any, Any, Any], Exception], Response[bytes]]:
    """Litestar's exception handler for what its router refuses before any route is asked."""

    def respond(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        problem = classify(error)
        body = shaped(problem, request.scope["path"], shapes)
        headers = dict(problem.headers)
        return Response(body, status_code=problem.status, headers=headers, media_type=MediaType.JSON)

    return respond
