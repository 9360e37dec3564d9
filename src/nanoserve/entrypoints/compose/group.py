"""The ranks that compute a model together, as the process of the first one starts and leads them."""

from __future__ import annotations

import sys
from typing import Any, Final

import attrs

from nanoserve.adapters.engine_process.ranks.leader import LeadingRunner, Rank, Ranks
from nanoserve.adapters.engine_process.wire.plans import Join
from nanoserve.adapters.pytorch.parallel.gloo import GlooRanks, open_listener
from nanoserve.adapters.pytorch.parallel.splitting import split_spec
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.ports.engine_facts import EngineSizes

FOLLOWER_COMMAND: Final = (sys.executable, "-m", "nanoserve.entrypoints.compose.follower")


@attrs.frozen(eq=False)
class Group:
    """The other ranks, and how this one talks to them in a step."""

    others: Ranks
    communicator: GlooRanks

    def lead(self, own: TorchRunner, sizes: EngineSizes, *, is_watchful: bool) -> LeadingRunner[Any]:
        """A runner over all ranks, once they have met."""
        listener, port = open_listener()
        with listener:
            self.others.build(sizes, port)
            self.communicator.meet(port, listener)
        return LeadingRunner(own, self.others, is_watchful=is_watchful)


def start_group(settings: EngineSettings, found: Survey) -> Group | None:
    """The other ranks, which begin to load their parts; None where the model is not split. Raises `BadValueError`."""
    size = settings.tensor_parallel_size
    if size == 1:
        return None
    split_spec(found.spec, size)
    same = attrs.asdict(settings) | {"device": found.device, "dtype": found.dtype}
    if found.folder is not None:
        same |= {"model": found.folder, "revision": None}
    joins = [Join(rank, size, same) for rank in range(1, size)]
    others = [Rank.launch(join.rank, FOLLOWER_COMMAND) for join in joins]
    return Group(Ranks(others, joins), GlooRanks(0, size))
