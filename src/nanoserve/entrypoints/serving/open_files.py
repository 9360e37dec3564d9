"""Every connection is an open file: the limit that shells set is lower than what a server needs."""

from __future__ import annotations

import resource
from typing import Final

import structlog

_OTHERS: Final = 256


def raise_open_files(connections: int) -> None:
    """Allow as many open files as the connections need, if the system lets us; warn where it does not."""
    wanted = connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    if soft < wanted and soft != resource.RLIM_INFINITY:
        allowed = wanted if unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            structlog.get_logger().warning(
                "few files may be open; raise ulimit -n", allowed=allowed, wanted=wanted
            )
