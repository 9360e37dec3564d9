"""Kinds of values: how each is read from text (a flag, the environment) and how a typed value (TOML, Python) is checked.

Both ways raise `ValueError` with the half sentence that follows the setting's name, such as "must be at least 1, got 0".
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import attrs

_YES: Final = {"1", "true", "yes", "on"}
_NO: Final = {"0", "false", "no", "off"}


class Kind(Protocol):
    """One kind of value."""

    @property
    def metavar(self) -> str:
        """What stands for the value in the help text."""
        ...

    def parse(self, text: str, /) -> Any:
        """Read and check a value written as text."""
        ...

    def check(self, value: Any, /) -> Any:
        """Check a value that already has a type; returns it, normalised."""
        ...


@attrs.frozen
class Text:
    """Any text that is not empty."""

    metavar: str = "TEXT"

    def parse(self, text: str) -> str:
        """Take the text as it is."""
        return self.check(text)

    def check(self, value: Any) -> str:
        """Refuse what is not text, or is empty."""
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be a text that is not empty, got {value!r}")
        return value


@attrs.frozen
class Integer:
    """A whole number within bounds."""

    low: int | None = None
    high: int | None = None
    metavar: str = "INTEGER"

    def parse(self, text: str) -> int:
        """Read decimal digits."""
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be an integer, got {text!r}") from None
        return self.check(value)

    def check(self, value: Any) -> int:
        """Refuse other types and numbers out of bounds."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be an integer, got {value!r}")  # noqa: TRY004 - one error type for all kinds
        _check_bounds(value, self.low, self.high)
        return value


@attrs.frozen
class Number:
    """A finite real number within bounds; `low` itself may be excluded."""

    low: float | None = None
    high: float | None = None
    above: bool = False
    metavar: str = "NUMBER"

    def parse(self, text: str) -> float:
        """Read a decimal number."""
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"must be a number, got {text!r}") from None
        return self.check(value)

    def check(self, value: Any) -> float:
        """Refuse other types, NaN, infinities and numbers out of bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {value!r}")
        if self.above and value == self.low:
            raise ValueError(f"must be above {self.low:g}, got {value:g}")
        _check_bounds(value, self.low, self.high)
        return float(value)


@attrs.frozen
class Boolean:
    """Yes or no."""

    metavar: str = ""

    def parse(self, text: str) -> bool:
        """Read 1/0, true/false, yes/no, on/off."""
        word = text.strip().lower()
        if word not in _YES | _NO:
            raise ValueError(f"must be one of true, false, 1, 0, yes, no, on, off, got {text!r}")
        return word in _YES

    def check(self, value: Any) -> bool:
        """Refuse everything but True and False."""
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, got {value!r}")  # noqa: TRY004 - one error type for all kinds
        return value


@attrs.frozen
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:
        """The words themselves."""
        return f"[{'|'.join(self.words)}]"

    def parse(self, text: str) -> str:
        """Read one of the words."""
        return self.check(text)

    def check(self, value: Any) -> str:
        """Refuse any other word."""
        if value not in self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}, got {value!r}")
        return str(value)


@attrs.frozen
class Optional:
    """Another kind, or a word that stands for None: the engine then decides, or the feature is off."""

    kind: Kind
    word: str = "auto"

    @property
    def metavar(self) -> str:
        """The other kind's."""
        return self.kind.metavar

    def parse(self, text: str) -> Any:
        """Read the word, or what the other kind reads."""
        return None if text.strip().lower() == self.word else self.kind.parse(text)

    def check(self, value: Any) -> Any:
        """Accept None and the word beside what the other kind accepts."""
        return None if value is None or value == self.word else self.kind.check(value)


def _check_bounds(value: float, low: float | None, high: float | None) -> None:
    if low is not None and value < low:
        raise ValueError(f"must be at least {low:g}, got {value:g}")
    if high is not None and value > high:
        raise ValueError(f"must be at most {high:g}, got {value:g}")
