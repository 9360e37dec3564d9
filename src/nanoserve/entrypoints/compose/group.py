"""The ranks that compute a model together, as the process of the first one starts and leads them."""

from __future__ import annotations

import os
from typing import Any

import attrs

from nanoserve.adapters.engine_process.ranks.leader import LeadingRunner, Ranks
from nanoserve.adapters.engine_process.wire.plans import Build, Join
from nanoserve.adapters.pytorch.devices import count_gpus
from nanoserve.adapters.pytorch.models import split_spec
from nanoserve.adapters.pytorch.parallel.communicator import MOST_SECONDS
from nanoserve.adapters.pytorch.parallel.gloo import GlooRanks, open_listener
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.engine_facts import EngineSizes


@attrs.frozen(eq=False)
class RankGroup:
    """The other ranks, and how this one talks to them in a step."""

    others: Ranks
    communicator: GlooRanks

    def meet(self, sizes: EngineSizes) -> None:
        """Let the other ranks make their runners, and return when all are here. Raises `RunnerLostError`."""
        listener, port = open_listener()
        with listener:
            self.others.send(Build(sizes, port))
            try:
                self.communicator.meet(port, listener)
            except Exception as error:  # noqa: BLE001 - a rank that could not come says why
                self.others.lose(error)

    def partners(self, free: int | None) -> dict[str, Any]:
        """Facts of the other ranks that a GPU's runner needs."""
        return {"ranks": self.communicator, "meet": self.meet, "watch": self.others.watch, "free": free}

    def lead(self, own: Any, *, is_watchful: bool, launches: bool) -> LeadingRunner[Any]:
        """A runner over all ranks, which have met; `launches`: a step is only launched when it is submitted, not computed."""
        limit = {"most_seconds": MOST_SECONDS} if launches else {}
        return LeadingRunner(own, self.others, is_watchful=is_watchful, loras=own.loras, **limit)


def start_group(settings: EngineSettings, found: Survey) -> RankGroup | None:
    """The other ranks, which begin to load their parts; None if the model is not split. Raises `BadValueError` or `RunnerLostError`."""
    size = settings.tensor_parallel_size
    split_spec(found.spec, size, expert_parallel=settings.expert_parallel)
    if found.others is None:
        return None
    same = attrs.asdict(settings) | {"device": found.device, "dtype": found.dtype}
    if found.folder is not None:
        same |= {"model": found.folder, "revision": None}
    see = own_gpu if found.device == "cuda" else lambda _: {}
    found.others.join([Join(rank, size, same, see(rank)) for rank in range(1, size)])
    return RankGroup(found.others, GlooRanks(0, size))


def own_gpu(rank: int) -> dict[str, str]:
    """Let a rank see all GPUs of this process, its own as the first, which is the one that a process computes on."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(number) for number in range(count_gpus())]
    return {"CUDA_VISIBLE_DEVICES": ",".join([*names[rank:], *names[:rank]])}
