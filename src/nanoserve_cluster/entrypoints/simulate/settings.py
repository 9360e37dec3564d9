"""Settings of `nanoserve simulate`: the requests, the cluster, and what happens to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import (
    ValueKind,
    integer,
    integers,
    number,
    pattern,
    several,
    text,
)
from nanoserve.entrypoints.compose.config.setting import optional, setting

_SECONDS: Final = r"(\d+(?:\.\d+)?)"


def _form(metavar: str, form: str, example: str, make: Callable[[re.Match[str]], Any]) -> ValueKind:
    """A text of a form, such as `120+60`."""
    return pattern(metavar, form, f"written {metavar}, such as {example}", make)


def _failure(found: re.Match[str]) -> tuple[str, int, float, float]:
    return found[1] or "replica", int(found[2]), float(found[3]), float(found[4])


FAILURE: Final = _form(
    "[zone]N@AT+SECONDS", rf"(zone)?(\d+)@{_SECONDS}\+{_SECONDS}", "3@120+60 or zone1@120+60", _failure
)
ROLLING: Final = _form(
    "AT+SECONDS[xN]",
    rf"{_SECONDS}\+{_SECONDS}(?:x([1-9]\d*))?",
    "120+30 or 120+30x4",
    lambda found: (float(found[1]), float(found[2]), int(found[3] or 1)),
)
SCALING: Final = _form(
    "AT:REPLICAS",
    rf"{_SECONDS}:([1-9]\d*)",
    "300:4",
    lambda found: (float(found[1]), int(found[2])),
)
HOT: Final = _form(
    "SHARE@AT",
    rf"(0\.\d+|1|1\.0)@{_SECONDS}",
    "0.5@200",
    lambda found: (float(found[1]), float(found[2])),
)


@attrs.frozen(kw_only=True)
class TrafficSettings:
    """Which requests come: those of a file, or drawn ones."""

    TABLE: ClassVar = "simulate"
    requests: str | None = optional(
        text("FILE"),
        "A trace of requests: Mooncake's JSON lines or Azure's table; if not given, one is drawn.",
    )
    duration: float | None = optional(
        number(above=0.0),
        "Seconds of the trace; if not given, 300 of a drawn one and all of a file.",
        word="auto",
    )
    rate: float | None = optional(number(above=0.0), "Requests per second, on average.", word="auto")
    load: float | None = optional(
        number(above=0.0),
        "The rate as a fraction of what the replicas could serve at full batches if nothing was found in a cache; 0.8 if "
        "neither this nor --rate is given.",
        word="auto",
    )
    tenants: int = setting(
        40, integer(low=1), "System prompts; how many conversations each gets follows Zipf's law."
    )
    system_tokens: int = setting(1500, integer(low=1), "Tokens of a system prompt, on average.")
    user_tokens: int = setting(300, integer(low=1), "Tokens of a question, on average.")
    answer_tokens: int = setting(250, integer(low=1), "Tokens of an answer, on average.")
    turns: float = setting(5.0, number(low=1.0), "Questions of a conversation, on average.")
    think_seconds: float = setting(40.0, number(above=0.0), "Seconds between two of them, on average.")
    burst: float = setting(1.0, number(low=1.0), "How many times the rate is during 20 seconds of every 120.")
    hot_tenant: tuple[float, float] | None = optional(
        HOT, "From AT seconds on, one tenant gets that share of all new conversations."
    )


@attrs.frozen(kw_only=True)
class ClusterSettings:
    """Settings of what serves them, and of what happens to it."""

    TABLE: ClassVar = "simulate"
    replicas: tuple[int, ...] = setting(
        (4,), integers(low=1), "Replicas; several numbers are tried one by one."
    )
    prefill_replicas: int = setting(
        0, integer(low=0), "More replicas, which compute long prompts for those and hand them over."
    )
    prefill_tokens: int = setting(
        2048, integer(low=1), "A prompt of which fewer tokens are missing is computed where it is decoded."
    )
    handover_rate: float = setting(
        40_000.0,
        number(above=0.0),
        "Tokens per second whose keys and values are handed over: 5 GB/s of an 8B model's.",
    )
    routing: tuple[str, ...] = setting(
        ("round-robin", "least-running", "lmetric"),
        several(text("POLICY"), "words separated by commas", least=1),
        "Router policies to compare: round-robin, least-running, bounded-hash, longest-prefix, lmetric, or all.",
    )
    gpu: str = setting("h100", text("NAME"), "The GPU that a replica runs on, by its data sheet.")
    gpus_per_replica: int = setting(
        1, integer(low=1, high=64), "GPUs of one replica, which share its weights."
    )
    cost: str | None = optional(
        text("FILE"),
        "How long steps take, as nanoserve bench calibrate has written it; replaces --model and --gpu.",
    )
    report_delay_ms: float = setting(
        0.0,
        number(low=0.0),
        "Milliseconds until the router learns that a prompt was computed or a request has ended.",
    )
    zones: int = setting(1, integer(low=1), "Replica N is in zone N modulo this.")
    fail: tuple[tuple[str, int, float, float], ...] = setting(
        (), several(FAILURE), "A replica or a zone dies at AT and is back after SECONDS, its cache empty."
    )
    rolling_restart: tuple[float, float, int] | None = optional(
        ROLLING, "From AT on all replicas are drained and restarted, N at a time; each is away for SECONDS."
    )
    scale_up: tuple[tuple[float, int], ...] = setting(
        (), several(SCALING), "So many more replicas, with empty caches, from AT seconds on."
    )
