"""What is known of the server at the moment, which the screen draws."""

from __future__ import annotations

import attrs

from nanoserve.entrypoints.top.following import Lost, Update
from nanoserve.entrypoints.top.recent import Recent
from nanoserve.entrypoints.top.status import Server, Status


@attrs.define
class Board:
    """The newest of everything; while the server is `lost`, the rest is what it said last."""

    url: str
    server: Server = attrs.field(factory=Server)
    recent: Recent = attrs.field(factory=Recent)
    lost: Lost | None = None

    def take(self, update: Update, now: float) -> None:
        """Note what came at this reading of a clock that never goes back."""
        match update:
            case Status():
                self.recent.take(now, update)
                self.lost = None
            case Server():
                self.server = update
                self.lost = None
            case Lost():
                self.lost = update
