"""Kinds of values: how each is read from text (a flag, the environment) and how a typed value (TOML, Python) is checked.

Both ways raise `ValueError` with the half sentence that follows the setting's name, such as "must be at least 1, got 0".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.host_names import host_name

_SWITCH: Final[Mapping[str, bool]] = {
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
}
_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_CLASS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}(:-?\d{1,9}(:[1-9]\d{0,8}(:[1-9]\d{0,8})?)?)?")


@attrs.frozen
class Kind:
    """One kind of value.

    Attributes:
        metavar: what stands for the value in the help text.
        check: checks a value that has a type already; returns it, normalised.
        convert: makes such a value from text; raises `ValueError` where it cannot.
        none_word: the word that stands for None; None where a value is required.
        is_switch: a flag without a value.
        repeats: a flag that may be given several times.
        words: all values, where they are a few words.
    """

    metavar: str
    check: Callable[[Any], Any]
    convert: Callable[[str], Any] = attrs.field(default=str, kw_only=True)
    none_word: str | None = attrs.field(default=None, kw_only=True)
    is_switch: bool = attrs.field(default=False, kw_only=True)
    repeats: bool = attrs.field(default=False, kw_only=True)
    words: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    def parse(self, written: str) -> Any:
        """Read and check a value written as text; text of another form is refused as a value of the wrong type is."""
        try:
            value = self.convert(written)
        except ValueError:
            value = written
        return self.check(value)


@attrs.frozen(repr=False)
class Secret:
    """A text that is never printed."""

    value: str

    def __repr__(self) -> str:
        return "***"


def or_none(kind: Kind, word: str = "auto") -> Kind:
    """Another kind, or a word that stands for None: the engine then decides, or the feature is off."""
    return attrs.evolve(
        kind,
        check=lambda value: None if value is None or value == word else kind.check(value),
        convert=lambda written: None if written.strip().lower() == word else kind.convert(written),
        none_word=word,
    )


def text(metavar: str = "TEXT") -> Kind:
    """Any text that is not empty."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be a text that is not empty, got {value!r}")
        return value

    return Kind(metavar, check)


def one_of(*words: str) -> Kind:
    """One of a few words."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}, got {value!r}")
        return str(value)

    return Kind(f"[{'|'.join(words)}]", check, words=words)


def boolean() -> Kind:
    """Yes or no."""

    def check(value: Any) -> bool:
        if isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(_SWITCH)}, got {value!r}")  # noqa: TRY004 - one error type for all kinds
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, got {value!r}")  # noqa: TRY004 - as above
        return value

    def convert(written: str) -> bool | str:
        return _SWITCH.get(written.strip().lower(), written)

    return Kind("", check, convert=convert, is_switch=True)


def integer(low: int | None = None, high: int | None = None) -> Kind:
    """A whole number within bounds."""

    def check(value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"must be an integer, got {value!r}")
        return int(_bounded(value, low, high))

    return Kind("INTEGER", check, convert=int)


def number(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Kind:
    """A finite real number within bounds; `above` itself is excluded."""

    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {value!r}")
        if above is not None and value == above:
            raise ValueError(f"must be above {above:g}, got {value:g}")
        return float(_bounded(value, low if above is None else above, high))

    return Kind("NUMBER", check, convert=float)


def texts(metavar: str = "TEXT") -> Kind:
    """Texts that are not empty. As a flag it is repeated; in the environment it is one text or a JSON array."""
    check = _list_check("texts that are not empty", lambda each: isinstance(each, str) and each)
    return Kind(metavar, check, convert=_one_or_json, repeats=True)


def integers(low: int) -> Kind:
    """Whole numbers from `low`, at least one; as text they are separated by commas."""
    return _numbers("INTEGER,...", f"integers from {low}", int, lambda each: each >= low)


def numbers() -> Kind:
    """Finite numbers above 0, at least one; as text they are separated by commas."""
    return _numbers("NUMBER,...", "finite numbers above 0", float, lambda each: 0 < each < math.inf)


def token_ids() -> Kind:
    """Token ids; as text they are separated by commas."""
    return _numbers("ID,...", "token ids from 0", int, lambda each: each >= 0, least=0)


def token_biases() -> Kind:
    """Token ids with what is added to their logits, written `ID:BIAS,...`; in TOML and JSON a table."""

    def check(value: Any) -> tuple[tuple[int, float], ...]:
        try:
            pairs = value.items() if isinstance(value, Mapping) else value
            return tuple((int(token), float(bias)) for token, bias in pairs)
        except (TypeError, ValueError):
            raise ValueError(
                f"takes a table of token ids and numbers, or ID:BIAS,..., got {value!r}"
            ) from None

    return Kind("ID:BIAS,...", check, convert=split_pairs)


def memory() -> Kind:
    """An amount of memory: an int of bytes (`4GiB`, `512MB`), or a float that is a fraction of what is free (`0.5`)."""
    wanted = "must be bytes such as 4GiB or a fraction such as 0.5"

    def check(value: Any) -> int | float:
        amount = _amount(value) if isinstance(value, str) else value
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not math.isfinite(amount):
            raise ValueError(f"{wanted}, got {value!r}")
        if amount <= 0 or (isinstance(amount, float) and amount > 1):
            raise ValueError(f"must be at least one byte, or a fraction in (0, 1], got {amount!r}")
        return amount

    return Kind("BYTES|FRACTION", check)


def size(low: int = 1) -> Kind:
    """So many bytes: an int, at least `low`; as text `256M`, `4GiB` or `1048576`."""

    def check(value: Any) -> int:
        try:
            amount = memory().check(value)
        except ValueError:
            amount = None
        if not isinstance(amount, int) or amount < low:
            raise ValueError(f"must be bytes such as 256M, at least {low}, got {value!r}")
        return amount

    return Kind("BYTES", check)


def secrets() -> Kind:
    """API keys, kept out of every message and table."""

    def check(value: Any) -> tuple[Secret, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(
            isinstance(each, str) and re.fullmatch(r"[\x21-\x7e]{1,512}", each) for each in items
        ):
            raise ValueError("takes keys: printable ASCII without spaces, at most 512 characters")
        return tuple(map(Secret, items))

    return Kind("KEY", check, convert=_one_or_json, repeats=True)


def host_names() -> Kind:
    """Names of hosts or IP addresses, as a Host header has them in front of its port; IPv6 in brackets."""
    check_texts = texts().check

    def check(value: Any) -> tuple[str, ...]:
        names = [host_name(f"{each}:0") for each in check_texts(value)]
        if not all(names):
            raise ValueError(f"takes names of hosts without scheme and port, got {value!r}")
        return tuple(filter(None, names))

    return Kind("NAME", check, convert=_one_or_json, repeats=True)


def origins() -> Kind:
    """Web origins, as browsers write them in an Origin header, or `*`."""
    check_texts = texts().check

    def check(value: Any) -> tuple[str, ...]:
        given = tuple(each.lower() for each in check_texts(value))
        if not all(each == "*" or _ORIGIN.fullmatch(each) for each in given):
            raise ValueError(
                f"takes origins such as https://page.example:8080, without a path, or *, got {value!r}"
            )
        return given

    return Kind("ORIGIN", check, convert=_one_or_json, repeats=True)


def request_classes() -> Kind:
    """Classes of requests, each `NAME`, `NAME:PRIORITY`, or with `:MAX_RUNNING` and `:MAX_WAITING` after it."""
    metavar = "NAME[:PRIORITY[:MAX_RUNNING[:MAX_WAITING]]],..."

    def check(value: Any) -> str:
        if not isinstance(value, str) or not all(map(_CLASS.fullmatch, value.split(","))):
            raise ValueError(f"takes {metavar}, got {value!r}")
        names = [each.partition(":")[0] for each in value.split(",")]
        if len(set(names)) != len(names):
            raise ValueError(f"takes each name once, got {value!r}")
        return value

    return Kind(metavar, check)


def _list_check(wanted: str, fits: Callable[[Any], object], *, least: int = 0) -> Callable[[Any], Any]:
    """A check for several values that all fit; one alone is a list of one."""

    def check(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, (list, tuple)) else (value,)
        if len(items) < least or not all(map(fits, items)):
            raise ValueError(f"takes {wanted}, got {value!r}")
        return tuple(items)

    return check


def split_pairs(written: str) -> list[list[str]]:
    """The parts of `NAME:VALUE,...`."""
    return [pair.split(":") for pair in written.split(",")]


def _one_or_json(written: str) -> Any:
    """One text, or a JSON array of texts."""
    return json.loads(written) if written.startswith("[") else written


def _amount(written: str) -> int | float | None:
    """Bytes where there is a unit or a whole number, else a fraction; None where it is neither."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", written)
    unit = match and _UNITS.get(match[2].lower())
    if match is None or unit is None:
        return None
    is_fraction = not match[2] and "." in match[1]
    return float(match[1]) if is_fraction else int(float(match[1]) * unit)


def _numbers(
    metavar: str, wanted: str, convert: type[int | float], fits: Callable[[Any], bool], *, least: int = 1
) -> Kind:
    """Numbers of one type; as text they are separated by commas."""
    types = {int, convert}
    check_list = _list_check(wanted, lambda each: type(each) in types and fits(each), least=least)

    def check(value: Any) -> tuple[int | float, ...]:
        return tuple(map(convert, check_list(value)))

    return Kind(metavar, check, convert=lambda written: [convert(part) for part in written.split(",")])


def _bounded(value: Any, low: float | None, high: float | None) -> Any:
    if low is not None and value < low:
        raise ValueError(f"must be at least {low:g}, got {value:g}")
    if high is not None and value > high:
        raise ValueError(f"must be at most {high:g}, got {value:g}")
    return value
