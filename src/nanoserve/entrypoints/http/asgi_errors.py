"""Errors of the layers around Litestar, written straight to the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from litestar.types import Send

from nanoserve.entrypoints.http.errors import Problem, encoded

Shapes = Mapping[str, Callable[[Problem], bytes]]
"""How protocols that have an error shape of their own write it, by the prefix of their paths."""


async def send_problem(send: Send, problem: Problem, path: str = "", shapes: Shapes | None = None) -> None:
    """A whole answer, in OpenAI's shape or in that of the path's own protocol."""
    own = next((write for prefix, write in (shapes or {}).items() if path.startswith(prefix)), None)
    body = encoded(problem.body) if own is None else own(problem)
    headers = {**problem.headers, "content-type": "application/json", "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
