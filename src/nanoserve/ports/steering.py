"""What trainers ask of an engine beside requests, and where that leaves it."""

from __future__ import annotations

import enum

import attrs


class PauseMode(enum.Enum):
    """What becomes of running requests; vLLM's words.

    `KEEP` stops them where they are, with their blocks, once the steps in flight are home. `WAIT` finishes those that run and
    admits no other. `ABORT` ends all, with what they have.
    """

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


@attrs.frozen(kw_only=True)
class Steering:
    """Where an engine stands.

    Attributes:
        paused: whether it makes no steps until it is resumed.
    """

    paused: bool = False
