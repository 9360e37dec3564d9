"""What an experiment is: an engine's settings, requests that arrive at given steps, and what is to be seen then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.offline.experiments.history import History


@attrs.frozen(kw_only=True)
class Asked:
    """A request, made of tokens of a story; it generates exactly `generates` tokens, greedily at temperature 0.

    Attributes:
        name: how the pictures call it.
        step: it arrives before this step is planned, or as soon as the engine has nothing else to do.
        shared: leading prompt tokens that are the same in every request that has any.
        own: prompt tokens after them, which no other request has.
        cancelled: before this step is planned, nobody wants it any more.
        n: how many answers are asked for.
    """

    name: str
    step: int = 1
    shared: int = 0
    own: int
    generates: int
    cancelled: int | None = None
    n: int = 1
    temperature: float = 0.0


@attrs.frozen(kw_only=True)
class Experiment:
    """One of the six.

    Attributes:
        title: what is to be seen, in half a sentence.
        settings: the engine's, by name; flags of the command overrule them.
        requests: in the order in which they arrive.
        beside: settings in which a second run differs, to compare the first one with; None runs once.
        in_one_picture: draw the run beside it first, and this one to its right.
        caption: what the picture shows, for its title; the settings' names in braces stand for their values.
        tell: what happened, in lines, from the history of the run and of the one beside it.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    requests: Sequence[Asked]
    beside: Mapping[str, Any] | None = None
    in_one_picture: bool = False
    caption: str
    tell: Callable[[History, History | None], list[str]]


def counted(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Words with commas and an `and`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
