"""What libraries log with Python's own logging goes where our own records go, and looks like them."""

from __future__ import annotations

import logging
from typing import Final

import structlog

_LOGGERS: Final = ("uvicorn.error", "asyncio")


class _Bridge(logging.Handler):
    """Hands records on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record on, with its traceback where it has one."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), library=record.name, exc_info=record.exc_info or None
        )


def bridge_library_logs() -> None:
    """To be called once; idempotent."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [_Bridge()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
