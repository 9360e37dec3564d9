"""Replicas on Ray Serve: Ray places, heals and scales them, and the router of `nanoserve route` chooses one for each request.

`serve run nanoserve_cluster.entrypoints.ray:app model=... replicas=4` starts here. Nothing else imports Ray.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from nanoserve.ports.errors import NanoserveError


def check_installed() -> None:
    """Raise `NanoserveError` if there is no Ray Serve."""
    if importlib.util.find_spec("ray") is None:
        raise NanoserveError("Ray Serve is not installed: pip install 'nanoserve[ray]'")


def app(args: dict[str, Any]) -> Any:
    """The Ray Serve application with its arguments: those of `RaySettings`, and settings of `nanoserve serve`.

    Raises `BadValueError`, and `NanoserveError` where there is no Ray.
    """
    check_installed()
    from nanoserve_cluster.entrypoints.ray.application import build  # noqa: PLC0415 - imports an extra

    return build(args, os.environ)
