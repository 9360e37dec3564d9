"""Kinds of values: how each is read from text (a flag, the environment) and how a typed value (TOML, Python) is checked.

Both ways raise `ValueError` with the half sentence that follows the setting's name, such as "must be at least 1, got 0".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.host_names import host_name

_MOST: Final = 2**63 - 1
_WORDS: Final = ("true", "false", "1", "0", "yes", "no", "on", "off")
_SWITCH: Final = {word: place % 2 == 0 for place, word in enumerate(_WORDS)}
_BINARY: Final = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS: Final = _BINARY | {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_ORIGIN: Final = r"(?ai)\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?"
_CLASS: Final = r"[A-Za-z0-9_-]{1,64}(:-?\d{1,9}(:[1-9]\d{0,8}(:[1-9]\d{0,8})?)?)?"
_LORA: Final = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}=[^=,]+"


@attrs.frozen
class ValueKind:
    """One kind of value.

    Attributes:
        metavar: what stands for the value in the help text.
        check: checks a value that has a type already; returns it, normalised.
        convert: makes such a value from text; raises `ValueError` if it cannot.
        none_word: the word that stands for None; None if a value is required.
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


def or_none(kind: ValueKind, word: str) -> ValueKind:
    """Another kind, or a word that stands for None: the engine then decides, or the feature is off."""
    return attrs.evolve(
        kind,
        check=lambda value: None if value is None or value == word else kind.check(value),
        convert=lambda written: None if written.strip().lower() == word else kind.convert(written),
        none_word=word,
    )


def text(metavar: str = "TEXT") -> ValueKind:
    """Any text that is not empty."""
    return ValueKind(
        metavar, _checked(lambda value: isinstance(value, str) and value, "a text that is not empty")
    )


def one_of(*words: str) -> ValueKind:
    """One of a few words."""
    check = _checked(lambda value: value in words, f"one of {', '.join(words)}")
    return ValueKind(f"[{'|'.join(words)}]", check, words=words)


def boolean() -> ValueKind:
    """Yes or no."""

    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            wanted = f"one of {', '.join(_WORDS)}" if isinstance(value, str) else "true or false"
            raise ValueError(f"must be {wanted}, got {value!r}")  # noqa: TRY004 - one error type for all kinds
        return value

    return ValueKind(
        "", check, convert=lambda written: _SWITCH.get(written.strip().lower(), written), is_switch=True
    )


def integer(low: int | None = None, high: int | None = None) -> ValueKind:
    """A whole number of 64 bits within bounds."""
    check = _checked(lambda value: type(value) is int, "an integer")
    fits = _checked(lambda value: abs(value) <= _MOST, "an integer of 64 bits")
    return ValueKind("INTEGER", lambda value: _bounded(fits(check(value)), low, high), convert=int)


def number(low: float | None = None, high: float | None = None, *, above: float | None = None) -> ValueKind:
    """A finite real number within bounds; `above` itself is excluded."""
    is_number = _checked(
        lambda each: type(each) in (int, float) and abs(each) <= sys.float_info.max, "a finite number"
    )

    def check(value: Any) -> float:
        if is_number(value) == above:
            raise ValueError(f"must be above {above:g}, got {value:g}")
        return float(_bounded(value, low if above is None else above, high))

    return ValueKind("NUMBER", check, convert=float)


def several(
    one: ValueKind, wanted: str = "", *, least: int = 0, repeats: bool = False, is_shown: bool = True
) -> ValueKind:
    """Any number of values of a kind, but at least so many; one alone is a list of one.

    As text they are separated by commas. Those of a flag that `repeats` are in the environment one text or a JSON array.
    Without `wanted`, a complaint is that of the value; what is refused `is_shown`, unless it is secret.
    """

    def check(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, (list, tuple)) else (value,)
        try:
            if len(items) >= least:
                return tuple(map(one.check, items))
        except ValueError:
            if not wanted:
                raise
        raise ValueError(f"takes {wanted}{f', got {value!r}' if is_shown else ''}")

    def convert(written: str) -> Any:
        if repeats:
            return json.loads(written) if written.startswith("[") else written
        return [one.convert(part.strip()) for part in written.split(",")]

    return ValueKind(one.metavar + ",..." * (not repeats), check, convert=convert, repeats=repeats)


def pattern(metavar: str, form: str, wanted: str, make: Callable[[re.Match[str]], Any]) -> ValueKind:
    """The kind of values that are made of a text of a form."""

    def check(value: Any) -> Any:
        found = re.fullmatch(form, value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"must be {wanted}, got {value!r}")
        return make(found)

    return ValueKind(metavar, check)


def texts(metavar: str = "TEXT") -> ValueKind:
    """Texts that are not empty."""
    return several(text(metavar), "texts that are not empty", repeats=True)


def integers(low: int) -> ValueKind:
    """Whole numbers from `low`, at least one."""
    return several(integer(low), f"integers from {low}", least=1)


def numbers() -> ValueKind:
    """Finite numbers above 0, at least one."""
    return several(number(above=0.0), "finite numbers above 0", least=1)


def token_ids() -> ValueKind:
    """Token ids."""
    return several(attrs.evolve(integer(low=0), metavar="ID"), "token ids from 0")


def secrets() -> ValueKind:
    """API keys, kept out of every message and table."""
    key = pattern("KEY", r"[\x21-\x7e]{1,512}", "a key", lambda found: Secret(found[0]))
    wanted = "keys: printable ASCII without spaces, at most 512 characters"
    return several(key, wanted, repeats=True, is_shown=False)


def host_names() -> ValueKind:
    """Names of hosts or IP addresses, as a Host header has them in front of its port; IPv6 in brackets."""

    def check(value: Any) -> str:
        name = host_name(f"{value}:0") if isinstance(value, str) else None
        if not name:
            raise ValueError
        return name

    return several(ValueKind("NAME", check), "names of hosts without scheme and port", repeats=True)


def origins() -> ValueKind:
    """Web origins, as browsers write them in an Origin header, or `*`."""
    wanted = "origins such as https://page.example:8080, without a path, or *"
    one = pattern("ORIGIN", _ORIGIN, wanted, lambda found: found[0].lower())
    return several(one, wanted, repeats=True)


def pairs(
    metavar: str, wanted: str, name: Callable[[Any], Any], fits: Callable[[Any, float], bool] | None = None
) -> ValueKind:
    """Numbers by name, written `NAME:NUMBER,...`; in TOML and JSON a table. With `fits`, each name comes once and is checked with its number."""

    def check(value: Any) -> tuple[tuple[Any, float], ...]:
        try:
            given = value.items() if isinstance(value, Mapping) else value
            found = tuple((name(each), float(amount)) for each, amount in given)
        except (TypeError, ValueError, AttributeError, OverflowError):
            found = None
        if found is None or (
            fits is not None and not (all(fits(*each) for each in found) and len(dict(found)) == len(found))
        ):
            raise ValueError(f"takes {wanted}, got {value!r}")
        return found

    return ValueKind(metavar, check, convert=lambda written: [each.split(":") for each in written.split(",")])


def memory() -> ValueKind:
    """An amount of memory: an int of bytes (`4GiB`, `512MB`), or a float that is a fraction of the free memory (`0.5`)."""
    wanted = "must be bytes such as 4GiB or a fraction such as 0.5"

    def check(value: Any) -> int | float:
        amount = _amount(value) if isinstance(value, str) else value
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not abs(amount) <= _MOST:
            raise ValueError(f"{wanted}, got {value!r}")
        if amount <= 0 or (isinstance(amount, float) and amount > 1):
            raise ValueError(f"must be at least one byte, or a fraction in (0, 1], got {amount!r}")
        return amount

    return ValueKind("BYTES|FRACTION", check)


def size(low: int = 1) -> ValueKind:
    """So many bytes: an int, at least `low`; as text `256M`, `4GiB` or `1048576`."""

    def check(value: Any) -> int:
        amount = _amount(value) if isinstance(value, str) else value
        if type(amount) is not int or not low <= amount <= _MOST:
            raise ValueError(f"must be bytes such as 256M, at least {low}, got {value!r}")
        return amount

    return ValueKind("BYTES", check)


def _named_once(metavar: str, form: str, mark: str) -> ValueKind:
    """A text of parts between commas, each of a form, whose names stand before the mark and are all different."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not all(re.fullmatch(form, each) for each in value.split(",")):
            raise ValueError(f"takes {metavar}, got {value!r}")
        names = [each.partition(mark)[0] for each in value.split(",")]
        if len(set(names)) != len(names):
            raise ValueError(f"takes each name once, got {value!r}")
        return value

    return ValueKind(metavar, check)


def request_classes() -> ValueKind:
    """Classes of requests, each `NAME`, `NAME:PRIORITY`, or with `:MAX_RUNNING` and `:MAX_WAITING` after it."""
    return _named_once("NAME[:PRIORITY[:MAX_RUNNING[:MAX_WAITING]]],...", _CLASS, ":")


def loras() -> ValueKind:
    """Adapters by name, each `NAME=FOLDER`."""
    return _named_once("NAME=FOLDER,...", _LORA, "=")


def named_loras(written: str | None) -> dict[str, str]:
    """The folders of adapters, by name, in the form of `loras`."""
    pairs = [each.partition("=") for each in written.split(",")] if written else []
    return {name: folder for name, _, folder in pairs}


def _checked(fits: Callable[[Any], object], wanted: str) -> Callable[[Any], Any]:
    """A check that returns a valid value unchanged."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"must be {wanted}, got {value!r:.80}")
        return value

    return check


def _amount(written: str) -> int | float | None:
    """Bytes where there is a unit or a whole number, else a fraction; None if it is neither."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", written)
    unit = match and _UNITS.get(match[2].lower())
    if match is None or unit is None:
        return None
    amount, is_fraction = float(match[1]) * unit, not match[2] and "." in match[1]
    return amount if is_fraction or amount > _MOST else int(amount)


def _bounded(value: Any, low: float | None, high: float | None) -> Any:
    if low is not None and value < low:
        raise ValueError(f"must be at least {low:g}, got {value:g}")
    if high is not None and value > high:
        raise ValueError(f"must be at most {high:g}, got {value:g}")
    return value
