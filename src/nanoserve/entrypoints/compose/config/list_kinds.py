"""Kinds of values that hold several: strings, numbers, token ids, and biases by token id."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Strings:
    """Texts that are not empty. As a flag it is repeated; in the environment it is one text or a JSON array."""

    metavar: str = "TEXT"

    def parse(self, text: str) -> tuple[str, ...]:
        """Read one text, or a JSON array of texts."""
        if not text.startswith("["):
            return self.check([text])
        try:
            return self.check(json.loads(text))
        except json.JSONDecodeError:
            return self.check([text])

    def check(self, value: Any) -> tuple[str, ...]:
        """Refuse anything but texts; one text alone is a list of one."""
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(each, str) and each for each in items):
            raise ValueError(f"takes texts that are not empty, got {value!r}")
        return tuple(items)


@attrs.frozen
class TokenIds:
    """Token ids; as text they are separated by commas."""

    metavar: str = "ID,..."

    def parse(self, text: str) -> tuple[int, ...]:
        """Read ids separated by commas."""
        try:
            return self.check([int(part) for part in text.split(",")])
        except ValueError:
            raise ValueError(f"takes token ids separated by commas, got {text!r}") from None

    def check(self, value: Any) -> tuple[int, ...]:
        """Refuse anything but integers from 0."""
        if not isinstance(value, (list, tuple)) or not all(type(each) is int and each >= 0 for each in value):
            raise ValueError(f"takes token ids from 0, got {value!r}")
        return tuple(value)


@attrs.frozen
class Integers:
    """Whole numbers from `low`, at least one; as text they are separated by commas."""

    low: int
    metavar: str = "INTEGER,..."

    def parse(self, text: str) -> tuple[int, ...]:
        """Read numbers separated by commas."""
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            raise ValueError(f"takes integers separated by commas, got {text!r}") from None
        return self.check(numbers)

    def check(self, value: Any) -> tuple[int, ...]:
        """Refuse anything but a list of integers from `low`."""
        if (
            not isinstance(value, (list, tuple))
            or not value
            or not all(type(each) is int and each >= self.low for each in value)
        ):
            raise ValueError(f"takes integers from {self.low}, got {value!r}")
        return tuple(value)


@attrs.frozen
class Numbers:
    """Finite numbers above 0, at least one; as text they are separated by commas."""

    metavar: str = "NUMBER,..."

    def parse(self, text: str) -> tuple[float, ...]:
        """Read numbers separated by commas."""
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            raise ValueError(f"takes numbers separated by commas, got {text!r}") from None
        return self.check(numbers)

    def check(self, value: Any) -> tuple[float, ...]:
        """Refuse anything but numbers above 0; one alone is a list of one."""
        items = [value] if isinstance(value, (int, float)) else value
        if (
            not isinstance(items, (list, tuple))
            or not items
            or not all(type(each) in (int, float) and 0 < each < math.inf for each in items)
        ):
            raise ValueError(f"takes finite numbers above 0, got {value!r}")
        return tuple(float(each) for each in items)


@attrs.frozen
class TokenBiases:
    """Token ids with what is added to their logits, written `ID:BIAS,...`; in TOML and JSON a table."""

    metavar: str = "ID:BIAS,..."

    def parse(self, text: str) -> tuple[tuple[int, float], ...]:
        """Read pairs separated by commas."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return tuple((int(token), float(bias)) for token, bias in pairs)
        except ValueError:
            raise ValueError(f"takes pairs written ID:BIAS, got {text!r}") from None

    def check(self, value: Any) -> tuple[tuple[int, float], ...]:
        """Read a mapping, whose keys may be texts, or pairs."""
        try:
            pairs = value.items() if isinstance(value, Mapping) else value
            return tuple((int(token), float(bias)) for token, bias in pairs)
        except (TypeError, ValueError):
            raise ValueError(f"takes a table of token ids and numbers, got {value!r}") from None
