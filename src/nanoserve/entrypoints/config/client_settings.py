"""Settings of the programs that talk to a server."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.config.kinds import Optional, Text
from nanoserve.entrypoints.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Which server is talked to; its key is no setting, so that no page of settings shows it."""

    url: str | None = setting(
        None, Optional(Text("URL"), "none"), "The server, such as http://127.0.0.1:8000, with or without /v1."
    )


CLIENT_SETTINGS: Final[tuple[Setting, ...]] = settings_of(ClientSettings, table="client")
