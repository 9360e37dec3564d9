"""A store of weights that has none."""

from __future__ import annotations

from nanoserve.ports.errors import BadValueError


class CountingStore:
    """Counts what is written."""

    written = 0
    is_lost = False

    def read(self, source: object, /, *, anew: bool, partial: bool) -> None:
        """Nothing to read."""

    def complete(self) -> str:
        return ""

    def write(self) -> None:
        self.written += 1

    def sleep(self, level: int, /) -> None:
        if level not in (1, 2):
            raise BadValueError("level", "must be 1 or 2")

    def wake(self, part: str, /) -> None:
        """Nothing to bring back."""
