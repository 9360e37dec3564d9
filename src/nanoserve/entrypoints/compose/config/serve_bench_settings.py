"""Settings of `nanoserve bench serve`: which load is sent to a server, and what counts as good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import Choice, Integer, Number, Optional
from nanoserve.entrypoints.compose.config.list_kinds import Integers, Numbers
from nanoserve.entrypoints.compose.config.setting import Setting, setting, settings_of

LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""Time to the first token, between two pieces, per further token, and of the whole request."""


@attrs.frozen
class Objectives:
    """Bounds by latency, written `ttft:500,itl:50` in milliseconds; in TOML a table."""

    metavar: str = "NAME:MS,..."

    def parse(self, text: str) -> tuple[tuple[str, float], ...]:
        """Read pairs separated by commas."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return self.check([(name.strip().lower(), float(bound)) for name, bound in pairs])
        except ValueError:
            raise ValueError(f"{_WANTED}, got {text!r}") from None

    def check(self, value: Any) -> tuple[tuple[str, float], ...]:
        """Read a mapping or pairs; refuse unknown names, repeated names and bounds that are not above 0."""
        try:
            pairs = list(value.items() if isinstance(value, Mapping) else value)
            bounds = {name: float(bound) for name, bound in pairs}
        except (TypeError, ValueError):
            raise ValueError(f"{_WANTED}, got {value!r}") from None
        if (
            len(bounds) < len(pairs)
            or not set(bounds) <= set(LATENCIES)
            or not all(0 < bound < float("inf") for bound in bounds.values())
        ):
            raise ValueError(f"{_WANTED}, got {value!r}")
        return tuple(bounds.items())


_WANTED: Final = f"takes pairs written NAME:MILLISECONDS, the names being {', '.join(LATENCIES)}"


@attrs.frozen(kw_only=True)
class ServeBenchSettings:
    """What is sent, how fast, and how it is judged."""

    endpoint: str = setting(
        "completions",
        Choice(("completions", "chat")),
        "completions sends prompts of random token ids, chat messages of random words.",
    )
    num_requests: int = setting(100, Integer(low=1), "Requests at each rate or concurrency.")
    request_rate: tuple[float, ...] | None = setting(
        None,
        Optional(Numbers(), "none"),
        "Open loop: requests per second, sent at random (Poisson) moments whatever is still unanswered; several are a sweep.",
    )
    concurrency: tuple[int, ...] | None = setting(
        None,
        Optional(Integers(low=1), "none"),
        "Closed loop: clients that each send a request when they have their answer; several are a sweep. "
        "8 if neither this nor --request-rate is given.",
    )
    slo: tuple[tuple[str, float], ...] = setting(
        (), Objectives(), "Most milliseconds of a good request: ttft:500,itl:50,tpot:50,e2e:5000."
    )
    warmup_requests: int = setting(4, Integer(low=1), "Requests sent before, and not counted.")
    client_timeout: float = setting(
        600.0, Number(0.0, above=True), "Seconds after which a request is given up."
    )


SERVE_BENCH_SETTINGS: Final[tuple[Setting, ...]] = settings_of(ServeBenchSettings, table="bench_serve")
