"""The experiments, in the order in which they explain the engine."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.offline.experiments.cancel import CANCEL
from nanoserve.entrypoints.offline.experiments.chunked_prefill import CHUNKED_PREFILL
from nanoserve.entrypoints.offline.experiments.experiment import Experiment
from nanoserve.entrypoints.offline.experiments.itl_bound import ITL_BOUND
from nanoserve.entrypoints.offline.experiments.preemption import PREEMPTION
from nanoserve.entrypoints.offline.experiments.prefix_hit import PREFIX_HIT
from nanoserve.entrypoints.offline.experiments.share import SHARE
from nanoserve.ports.errors import BadValueError

EXPERIMENTS: Final = (PREFIX_HIT, CHUNKED_PREFILL, ITL_BOUND, PREEMPTION, SHARE, CANCEL)


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; raises `BadValueError`."""
    for each in EXPERIMENTS:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in EXPERIMENTS)
    raise BadValueError("EXPERIMENT", f"must be one of {names}, got {name!r}")
