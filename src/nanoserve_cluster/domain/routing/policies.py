"""Router policies: pure functions from what is known of the replicas and of a request to a replica.

Each gets the views of the replicas that take requests, at least one, in the order in which they joined. Where several replicas are
equally good, one of them is drawn, so that an idle cluster is used evenly.

`least_running` is the honest baseline. `bounded_hash` is consistent hashing with bounded loads (Mirrokni, Thorup and
Zadimoghaddam, arXiv 1608.01350) over rendezvous order. `lmetric` multiplies the tokens that a replica would have to compute by the
requests that it has, which needs no weight to tune (LMetric, arXiv 2603.15202).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nanoserve_cluster.ports.routing import RandomDraw, ReplicaView, RoutedRequest

Policy = Callable[[Sequence[ReplicaView], RoutedRequest, RandomDraw], ReplicaView]

LOAD_FACTOR: Final = 1.25
"""How far above the mean a replica's requests may be before `bounded_hash` passes it over."""


def round_robin(views: Sequence[ReplicaView], asked: RoutedRequest, _draw: RandomDraw, /) -> ReplicaView:
    """One after the other."""
    return views[asked.number % len(views)]


def least_running(views: Sequence[ReplicaView], _asked: RoutedRequest, draw: RandomDraw, /) -> ReplicaView:
    """The fewest unfinished requests."""
    return _least(views, [view.requests for view in views], draw)


def bounded_hash(views: Sequence[ReplicaView], asked: RoutedRequest, _draw: RandomDraw, /) -> ReplicaView:
    """The replica that the request's affinity names, or the next in its order that has not too much to do.

    A replica that comes or goes moves only the affinities that name it.
    """
    bound = LOAD_FACTOR * (sum(view.requests for view in views) + 1) / len(views)
    order = sorted(views, key=lambda view: hash((asked.affinity, view.replica)))
    # The mean is below the bound, so at least one is below it.
    return next(view for view in order if view.requests < bound)


def longest_prefix(views: Sequence[ReplicaView], asked: RoutedRequest, draw: RandomDraw, /) -> ReplicaView:
    """The most cached tokens; among equals the fewest unfinished requests."""
    cached = asked.cached_tokens
    return _least(views, [(-cached.get(view.replica, 0), view.requests) for view in views], draw)


def lmetric(views: Sequence[ReplicaView], asked: RoutedRequest, draw: RandomDraw, /) -> ReplicaView:
    """The least product of tokens to compute before this request's first one, and of requests that would then share the replica."""
    cached, tokens = asked.cached_tokens, asked.num_tokens
    scores = [
        (view.pending_tokens + tokens - cached.get(view.replica, 0)) * (view.requests + 1) for view in views
    ]
    return _least(views, scores, draw)


POLICIES: Final[Mapping[str, Policy]] = {
    "round-robin": round_robin,
    "least-running": least_running,
    "bounded-hash": bounded_hash,
    "longest-prefix": longest_prefix,
    "lmetric": lmetric,
}


def _least(
    views: Sequence[ReplicaView], scores: Sequence[int | tuple[int, int]], draw: RandomDraw
) -> ReplicaView:
    best = min(scores)
    found = [place for place, score in enumerate(scores) if score == best]
    return views[found[int(draw.random() * len(found))] if len(found) > 1 else found[0]]
