"""Prompts that are computed elsewhere than answers: a replica computes one and hands its blocks over, another decodes.

The blocks travel through the folder that both engines keep them in (`--kv-role`), where the second one finds them by their names. The router carries
none of them: it asks for one token, which it drops, and passes the request on. What goes wrong costs time alone, because the second engine
computes what it does not find.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import Any

import httpx
import structlog

from nanoserve_cluster.entrypoints.route.bounds import Keeping
from nanoserve_cluster.entrypoints.route.fleet import Fleet
from nanoserve_cluster.entrypoints.route.prompts import prefill_body, read_prompt
from nanoserve_cluster.entrypoints.route.visits import request_to, visiting


class PrefillStage:
    """The replicas that compute prompts, of which at least `least` tokens are missing where they are decoded."""

    def __init__(self, fleet: Fleet, least: int) -> None:
        self.fleet = fleet
        self._least = least
        self._keeping = Keeping()

    async def compute(
        self, scope: Any, target: bytes, body: bytes, missing: int, ended: Counter[tuple[str, str]]
    ) -> None:
        """Have a request's prompt computed, if it is worth it; returns when its blocks can be found, or nobody has computed it."""
        tried: set[int] = set()
        prompt, fields = read_prompt(scope["headers"], body)
        asked = prefill_body(scope["path"], fields)
        while asked is not None and missing >= self._least and self.fleet.up - tried:
            placement = self.fleet.table.route(prompt.ids or (0,), prompt.affinity, without=tried)
            replica = self.fleet.replicas[placement.replica]
            tried.add(replica.number)
            with visiting(self.fleet, replica, placement, ended) as visit:
                request, client, reason = request_to(replica, scope, target, asked), self.fleet.client, ""
                try:
                    async with aclosing(await replica.heard(client.send(request, stream=True))) as answer:
                        await replica.heard(self._keeping.whole(answer))
                        visit.is_computed = answer.is_success
                        visit.outcome = "answered"
                        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                            return
                        visit.outcome, reason = "refused", "it answers 503"
                except httpx.TransportError as error:
                    visit.outcome, visit.is_computed = "broken", False
                    replica.suspected.set()
                    reason = str(error) or type(error).__name__
            structlog.get_logger().info("a prompt is computed elsewhere", after=replica.url, reason=reason)
