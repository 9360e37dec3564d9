"""Settings of `nanoserve route`: the replicas, how one is chosen, and how their health is known."""

from __future__ import annotations

from typing import ClassVar

import attrs

from nanoserve.entrypoints.compose.config.kinds import integer, number, text, texts
from nanoserve.entrypoints.compose.config.setting import setting


@attrs.frozen(kw_only=True)
class RouteSettings:
    """Where requests go."""

    TABLE: ClassVar = "route"
    replica: tuple[str, ...] = setting(
        (),
        texts("URL[,PORT[,PORT]]"),
        "A server to send requests to; repeatable. Behind the URL the ports of its KV events and of their replay, if it "
        "publishes them.",
    )
    prefill_replica: tuple[str, ...] = setting(
        (),
        texts("URL"),
        "A server that computes long prompts for those and hands their blocks over (its --kv-role is prefill, theirs decode); repeatable.",
    )
    prefill_min_tokens: int = setting(
        2048, integer(low=1), "A prompt of which fewer tokens are missing is computed where it is decoded."
    )
    router_policy: str = setting(
        "lmetric",
        text("POLICY"),
        "How a replica is chosen: round-robin, least-running, bounded-hash, longest-prefix or lmetric.",
    )
    health_path: str = setting("/readyz", text("PATH"), "A replica takes requests while it answers 200 here.")
    health_interval: float = setting(1.0, number(above=0.0), "Seconds between two looks at a replica.")
    health_timeout: float = setting(
        5.0, number(above=0.0), "Seconds that a replica may take to answer, and to be connected to."
    )
    health_failures: int = setting(
        3,
        integer(low=1),
        "Looks in a row without any answer after which a replica's requests are given up there.",
    )
