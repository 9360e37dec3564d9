"""Settings that several commands share: what is logged, the step log, and the server that a client talks to."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import Boolean, Choice, Optional, Text
from nanoserve.entrypoints.compose.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class LogSettings:
    """What is logged on standard error."""

    log_level: str = setting(
        "warning", Choice(("debug", "info", "warning", "error")), "Log what is at least this important."
    )
    log_json: bool = setting(False, Boolean(), "Log one JSON object per line.")
    debug: bool = setting(False, Boolean(), "Show the traceback of an error.")


LOG_SETTINGS: Final[tuple[Setting, ...]] = settings_of(LogSettings, table="")


@attrs.frozen(kw_only=True)
class TraceSettings:
    """Where the step log goes, and what it may tell."""

    trace: str | None = setting(
        None,
        Optional(Text("FILE"), "none"),
        "Write the engine's step log here, for `nanoserve inspect`; a name that ends in .gz is compressed.",
    )
    trace_words: bool = setting(
        False,
        Boolean(),
        "Write into the step log also what was asked and answered; otherwise it has no word.",
    )


TRACE_SETTINGS: Final[tuple[Setting, ...]] = settings_of(TraceSettings, table="")


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Which server is talked to; its key is no setting, so that no page of settings shows it."""

    url: str | None = setting(
        None, Optional(Text("URL"), "none"), "The server, such as http://127.0.0.1:8000, with or without /v1."
    )


CLIENT_SETTINGS: Final[tuple[Setting, ...]] = settings_of(ClientSettings, table="client")
