"""A router's record: what was sent where, what is known to be done, and the policy's choice from that.

A replica's view counts what this router has sent to it, at once, less what was reported as done, whenever that
comes. So a late report makes replicas look busier than they are, and never hides a request that was just sent.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockHash
from nanoserve_cluster.domain.routing.policies import POLICIES, lmetric, longest_prefix
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex, block_names
from nanoserve_cluster.ports.routing import RandomDraw, ReplicaView, RoutedRequest

_READ_PREFIXES: Final = {longest_prefix, lmetric}


@attrs.frozen
class Placement:
    """Where a request goes; `new_tokens` of its prompt, in `new_blocks`, are believed to be missing in the cache there."""

    replica: int
    new_tokens: int
    new_blocks: tuple[BlockHash, ...] = ()


class Router:
    """Chooses by one policy, with an index of prefixes only where that policy reads it.

    Args:
        policy: a name of `POLICIES`.
        index: of prefixes, in blocks of `block_size` tokens.
        draw: breaks ties.

    Attributes:
        reads_prefixes: whether the policy looks at the index.
    """

    def __init__(self, policy: str, index: PrefixIndex, *, block_size: int, draw: RandomDraw) -> None:
        if policy not in POLICIES:
            raise BadValueError("router_policy", f"must be one of {', '.join(POLICIES)}, got {policy!r}")
        self._choose = POLICIES[policy]
        self.reads_prefixes: Final = self._choose in _READ_PREFIXES
        self.index = index
        self.block_size = block_size
        self._draw = draw
        self._views: dict[int, ReplicaView] = {}
        self._routed = 0

    @property
    def is_empty(self) -> bool:
        """True if no replica takes requests."""
        return not self._views

    def join(self, replica: int) -> None:
        """A replica takes requests from now on; its cache is empty."""
        self._views[replica] = ReplicaView(replica)

    def leave(self, replica: int) -> None:
        """A replica takes no requests any more, and its cache is lost."""
        self._views.pop(replica, None)
        self.index.forget(replica)

    def route(
        self, token_ids: tuple[int, ...], affinity: int, *, without: AbstractSet[int] = frozenset()
    ) -> Placement:
        """Choose a replica for a prompt, and count it as sent; one that is not `without` must take requests."""
        hashes = block_names(token_ids, self.block_size) if self.reads_prefixes else []
        # At least one token is always computed.
        most = len(token_ids) - 1
        cached = {
            replica: min(blocks * self.block_size, most)
            for replica, blocks in self.index.matches(hashes).items()
        }
        asked = RoutedRequest(
            number=self._routed, num_tokens=len(token_ids), affinity=affinity, cached_tokens=cached
        )
        views = [each for number, each in self._views.items() if number not in without]
        view = self._choose(views, asked, self._draw)
        self._routed += 1
        in_cache = cached.get(view.replica, 0)
        new_tokens = len(token_ids) - in_cache
        view.requests += 1
        view.pending_tokens += new_tokens
        if hashes:
            self.index.add(view.replica, hashes)
        return Placement(view.replica, new_tokens, tuple(hashes[-(-in_cache // self.block_size) :]))

    def note_prefilled(self, placement: Placement) -> None:
        """The replica reports that a prompt is computed."""
        if view := self._views.get(placement.replica):
            view.pending_tokens -= placement.new_tokens

    def note_not_computed(self, placement: Placement) -> None:
        """The replica has refused the prompt, or failed on it: what was entered as cached there in advance is not."""
        self.index.remove(placement.replica, placement.new_blocks)

    def note_ended(self, placement: Placement) -> None:
        """The replica reports that a request has ended; that its prompt is computed was reported before."""
        if view := self._views.get(placement.replica):
            view.requests -= 1
