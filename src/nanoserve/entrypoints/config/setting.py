"""A `Setting`: one named value that a flag, the environment and the TOML file can all set."""

from __future__ import annotations

from typing import Any

import attrs

from nanoserve.entrypoints.config.kinds import Kind
from nanoserve.ports.errors import BadValueError


@attrs.frozen(kw_only=True)
class Setting:
    """What is known of a setting before anybody gives it a value.

    Attributes:
        table: the TOML table it lives in; empty for the top level.
        default: its value where no source names it.
        summary: one sentence for `--help`.
    """

    name: str
    table: str
    kind: Kind
    default: Any
    summary: str

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "NANOSERVE_" + self.name.upper()

    def read(self, value: Any, origin: str, *, text: bool) -> Any:
        """The checked value; raises `BadValueError` with the setting's name and the origin."""
        try:
            return self.kind.parse(value) if text else self.kind.check(value)
        except ValueError as error:
            raise BadValueError(self.name, f"{error} (from {origin})") from None


@attrs.frozen
class Sourced:
    """A value and where it came from."""

    value: Any
    origin: str


def setting(default: Any, kind: Kind, summary: str) -> Any:
    """Declare an attribute of a settings class together with its kind and its help."""
    return attrs.field(default=default, metadata={"kind": kind, "summary": summary})


def settings_of(declared: type[attrs.AttrsInstance], *, table: str) -> tuple[Setting, ...]:
    """The settings that a class declares, in order."""
    return tuple(
        Setting(
            name=field.name,
            table=table,
            kind=field.metadata["kind"],
            default=field.default,
            summary=field.metadata["summary"],
        )
        for field in attrs.fields(declared)
    )
