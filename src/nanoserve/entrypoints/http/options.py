"""OPTIONS: the methods that a path takes.

Litestar answers it by itself, but where several handlers share a path it names the methods of the first one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import HttpMethod, Request, Response, route


def options_of(handlers: Sequence[Any]) -> Any:
    """One more handler, which answers OPTIONS on every path of the others; register it first, or Litestar adds its own."""
    paths = sorted({path for each in handlers for path in each.paths})
    return route(paths, http_method=HttpMethod.OPTIONS, status_code=204, include_in_schema=False)(_options)


async def _options(request: Request[Any, Any, Any]) -> Response[None]:
    path = request.scope["path_template"]
    methods = next(each.methods for each in request.app.routes if each.path_format == path)
    return Response(None, headers={"allow": ", ".join(sorted(methods))})
