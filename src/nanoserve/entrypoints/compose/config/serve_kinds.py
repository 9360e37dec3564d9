"""Kinds of values that only a server has: secrets, and classes of requests."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.config.list_kinds import Strings
from nanoserve.entrypoints.compose.host_names import host_name

_CLASS: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_-]{1,64})(:(-?\d{1,9})(:([1-9]\d{0,8})(:([1-9]\d{0,8}))?)?)?"
)


@attrs.frozen(repr=False)
class Secret:
    """A text that shows itself to nobody who prints it."""

    value: str

    def __repr__(self) -> str:
        """Stars."""
        return "***"


@attrs.frozen
class Secrets(Strings):
    """As `Strings`, kept out of every message and table."""

    metavar: str = "KEY"

    def check(self, value: Any) -> tuple[Any, ...]:
        """Refuse what no HTTP header could carry."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(_is_key(each) for each in items):
            raise ValueError("takes keys: printable ASCII without spaces, at most 512 characters")
        return tuple(Secret(each) for each in items)


@attrs.frozen
class HostNames(Strings):
    """As `Strings`, each the name of a host or an IP address, without a port; IPv6 in brackets."""

    metavar: str = "NAME"

    def check(self, value: Any) -> tuple[str, ...]:
        """Refuse what no Host header has in front of its port."""
        written = super().check(value)
        names = tuple(name for each in written if (name := host_name(f"{each}:0")))
        if len(names) < len(written):
            raise ValueError(f"takes names of hosts without scheme and port, got {value!r}")
        return names


@attrs.frozen
class RequestClasses:
    """Classes of requests, each `NAME`, `NAME:PRIORITY`, or with `:MAX_RUNNING` and `:MAX_WAITING` after it."""

    metavar: str = "NAME[:PRIORITY[:MAX_RUNNING[:MAX_WAITING]]],..."

    def parse(self, text: str) -> str:
        """Read classes separated by commas."""
        return self.check(text)

    def check(self, value: Any) -> str:
        """Refuse what is not written so, and a name twice."""
        if not isinstance(value, str) or not all(map(_CLASS.fullmatch, value.split(","))):
            raise ValueError(f"takes {self.metavar}, got {value!r}")
        names = class_names(value)
        if len(set(names)) != len(names):
            raise ValueError(f"takes each name once, got {value!r}")
        return value


def class_names(written: str | None) -> list[str]:
    """The names of the classes that were written down."""
    return [each.partition(":")[0] for each in written.split(",")] if written else []


def _is_key(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[\x21-\x7e]{1,512}", value))
