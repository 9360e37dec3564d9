"""OPTIONS: what a route says it takes is what it takes."""

from __future__ import annotations

import re
from collections import defaultdict

from nanoserve.entrypoints.server.http_server import PROTOCOLS
from nanoserve.entrypoints.server.watch import about, health, live, metrics, openapi, page
from tests.unit.entrypoints.server.http.app_world import app_world

ROUTES = (
    *health.ROUTES,
    *metrics.ROUTES,
    *about.ROUTES,
    *live.ROUTES,
    *openapi.ROUTES,
    *page.ROUTES,
    *PROTOCOLS.routes,
)
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")


def test_every_route_names_all_its_methods_and_takes_no_other() -> None:
    methods: defaultdict[str, set[str]] = defaultdict(lambda: {"OPTIONS"})
    for route in ROUTES:
        for path in route.paths:
            methods[path] |= route.http_methods
    assert {"DELETE", "GET"} < methods["/v1/responses/{response_id:str}"]
    with app_world() as world, world.client() as client:
        for path, taken in methods.items():
            target = re.sub(r"{[^}]*}", "x", path)
            options = client.options(target)
            assert (options.status_code, options.content) == (204, b""), path
            assert options.headers["allow"] == ", ".join(sorted(taken)), path
            for method in METHODS:
                if method in taken:
                    continue
                refused = client.request(method, target)
                assert (method, refused.status_code) == (method, 405), path
                assert set(refused.headers["allow"].split(", ")) == taken, path
