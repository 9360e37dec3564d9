"""The router's knowledge when it chooses a replica for a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs


class RandomDraw(Protocol):
    """A source of numbers that are as good as random; `random.Random` is one."""

    def random(self) -> float:
        """The next number, at least 0 and below 1."""


@attrs.define
class ReplicaView:
    """One replica as a router sees it: what the replica has reported, and what was sent to it since.

    Attributes:
        replica: its number, which it keeps when it is restarted.
        requests: sent to it and not known to have ended, whether they run or wait.
        pending_tokens: prompt tokens of those that are not known to have been computed.
    """

    replica: int
    requests: int = 0
    pending_tokens: int = 0


@attrs.frozen(kw_only=True)
class RoutedRequest:
    """A request that a replica is wanted for.

    Attributes:
        number: how many requests were routed before it.
        num_tokens: of its prompt.
        affinity: equal for requests that should meet, such as those of one conversation.
        cached_tokens: by replica, how many of its leading tokens are believed to be in that replica's cache; replicas
            that have none are left out.
    """

    number: int
    num_tokens: int
    affinity: int
    cached_tokens: Mapping[int, int] = attrs.field(factory=dict)
