"""Settings of what the program says about itself; shared by all commands."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.config.kinds import Boolean, Choice
from nanoserve.entrypoints.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class LogSettings:
    """What is logged on standard error."""

    log_level: str = setting(
        "warning", Choice(("debug", "info", "warning", "error")), "Log what is at least this important."
    )
    log_json: bool = setting(False, Boolean(), "Log one JSON object per line.")
    debug: bool = setting(False, Boolean(), "Show the traceback of an error.")


LOG_SETTINGS: Final[tuple[Setting, ...]] = settings_of(LogSettings, table="")
