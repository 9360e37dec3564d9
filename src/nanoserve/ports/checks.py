"""Checks of values that callers give; each raises a `BadValueError` that names the parameter and the bounds."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable

from nanoserve.ports.errors import BadValueError

_LONGEST_SHOWN = 80


def shown(value: object) -> str:
    """The text of any value in an error message, kept short."""
    try:
        text = repr(value)
    except ValueError:
        return "an integer too long to print"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def check_number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """A finite number in [low, high], or in (low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -math.inf < value < math.inf:
        raise BadValueError(name, f"must be a finite number, got {shown(value)}")
    if not low <= value <= high or (open_low and value == low):
        left = "(" if open_low else "["
        raise BadValueError(name, f"must be in {left}{low:g}, {high:g}], got {shown(value)}")


def check_integer(name: str, value: object, low: int | None = None, high: int | None = None) -> None:
    """An integer from `low` to `high`; None is no bound."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValueError(name, f"must be an integer, got {shown(value)}")
    if low is not None and value < low:
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise BadValueError(name, f"must be {bounds}, got {shown(value)}")
    if high is not None and value > high:
        bounds = f"at most {high}" if low is None else f"from {low} to {high}"
        raise BadValueError(name, f"must be {bounds}, got {shown(value)}")


def check_logprobs(name: str, count: int | None, most: int) -> None:
    """A number of likeliest tokens to report, at most as many as `max_logprobs` allows; None is none."""
    if count is not None:
        check_integer(name, count, 0)
        if count > most:
            message = f"must be at most {most}, got {count}; max_logprobs raises the bound"
            raise BadValueError(name, message)


def check_switch(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise BadValueError(name, f"must be true or false, got {shown(value)}")


def check_texts(name: str, values: Iterable[object], most: int, characters: int) -> None:
    """Non-empty texts, at most this many, with at most this many characters together."""
    texts = tuple(values)
    if len(texts) > most:
        raise BadValueError(name, f"takes at most {most} strings, got {len(texts)}")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadValueError(name, f"takes non-empty strings, got {shown(text)}")
    length = sum(len(text) for text in texts if isinstance(text, str))
    if length > characters:
        raise BadValueError(name, f"takes at most {characters} characters together, got {length}")


def check_token_ids(name: str, ids: Iterable[object]) -> None:
    """Integers from 0; whether they are in the vocabulary, `check_vocabulary` says."""
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise BadValueError(name, f"takes token ids from 0, got {shown(token)}")


def check_vocabulary(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Ids from 0 to below `vocab_size`."""
    if not _all_inside(ids, vocab_size):
        wrong = next(token for token in ids if not _all_inside((token,), vocab_size))
        raise BadValueError(name, f"token id {shown(wrong)} is outside the vocabulary of {vocab_size}")


def _all_inside(ids: Collection[int], vocab_size: int) -> bool:
    """Tests whether all are ids of the vocabulary. Prompts have thousands: nothing here runs Python code once per id."""
    if operator.countOf(map(type, ids), int) == len(ids):
        ids = set(ids)  # sooner compared: texts repeat themselves
    else:
        kinds = set(map(type, ids))
        if bool in kinds or not all(hasattr(kind, "__index__") for kind in kinds):
            return False
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)
