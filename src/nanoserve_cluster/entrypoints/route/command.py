"""`nanoserve route`: one address in front of several servers."""

from __future__ import annotations

from typing import Final

import rich_click as click

from nanoserve.entrypoints.cli.options import ENGINE, command, named
from nanoserve.entrypoints.compose.config.configuration import Configuration, settings_of
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, BoundSettings, ListenSettings
from nanoserve_cluster.entrypoints import HELP
from nanoserve_cluster.entrypoints.route.settings import RouteSettings

_LISTENING: Final = (
    *named(settings_of(ListenSettings), "host", "port", "uds", "backlog", "drain_timeout"),
    *named(settings_of(AccessSettings), "allowed_host"),
)
_BOUNDS: Final = named(
    settings_of(BoundSettings),
    *("max_body_size", "max_header_size", "max_connections", "header_timeout", "body_timeout"),
    *("send_timeout", "keep_alive"),
)


@command(
    "nanoserve route",
    {
        "Replicas": (*settings_of(RouteSettings), *named(ENGINE, "block_size")),
        "Listening": _LISTENING,
        "Bounds": _BOUNDS,
    },
    sample=True,
    pages=HELP,
)
def route(configuration: Configuration) -> None:
    """Answer for several servers of one model: each request goes to one of them, by load and by what is cached where.

    A replica that is away gets no requests until it is back. A request that has no answer yet goes to another one.
    """
    from nanoserve.entrypoints.server.sockets import with_code  # noqa: PLC0415 - as above
    from nanoserve.ports.errors import NanoserveError  # noqa: PLC0415 - as above
    from nanoserve_cluster.entrypoints.route.run import run_router  # noqa: PLC0415 - not needed for --help

    try:
        run_router(configuration, click.echo)
    except NanoserveError as error:
        raise with_code(error) from error
