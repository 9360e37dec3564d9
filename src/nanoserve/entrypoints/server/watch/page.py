"""Serves the page and the files that it loads."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException

from nanoserve.entrypoints.page.files import FOLDER, INDEX, read_page

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@get([INDEX, FOLDER + "{name:path}"], include_in_schema=False)
async def page_file(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A file that exists by exactly this path, or 304 for a browser that has it."""
    found = read_page().get(request.scope["path"])
    if found is None:
        raise NotFoundException
    headers = {**HEADERS, "etag": found.etag}
    known = request.headers.get("if-none-match", "")
    if found.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(b"", status_code=304, headers=headers, media_type=found.content_type)
    return Response(found.body, headers=headers, media_type=found.content_type)


@get(INDEX, media_type="text/plain", include_in_schema=False)
async def root() -> str:
    """The answer at the page's place without a page: Ollama's clients ask there whether a server is up."""
    return "nanoserve is running"


ROUTES: Final = (page_file,)
ROUTES_WITHOUT_PAGE: Final = (root,)
