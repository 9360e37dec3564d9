"""An engine over a CPU runner in which every page of which nothing is known is NaN, and which counts what it computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.runner import TorchRunner, TorchTicket
from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.ports.driven import Drafter
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import AdmittedRow, StepPlan
from tests.served import Answer, Served


class Poisoned(TorchRunner):
    """Fills free pages of which nothing is known, and the sink, with NaN before each step, and notes what is computed."""

    allocators: Sequence[BlockAllocator] = ()
    groups_of_layers: Sequence[int] = ()
    computed = 0
    resumed: tuple[AdmittedRow, ...] = ()

    def submit(self, plan: StepPlan, /) -> TorchTicket:
        """Poison, then compute."""
        for group, kept in zip(self.groups_of_layers, self.kv.layers, strict=True):
            for tensor in kept:
                tensor[[0, *self.allocators[group]._blank]] = math.nan
        self.resumed += tuple(row for row in plan.admitted if len(row.token_ids) > row.num_prompt_tokens)
        self.computed += sum(chunk.length for chunk in plan.chunks)
        return super().submit(plan)


class PoisonedEngine(Served):
    """An engine over a `Poisoned` runner."""

    def __init__(
        self,
        model: DecoderModel,
        *,
        drafter: Drafter | None = None,
        runs: type[Poisoned] = Poisoned,
        **limits: Any,
    ) -> None:
        def make(sizes: Any) -> Poisoned:
            self.runner = runs(model, sizes, drafter)
            return self.runner

        super().__init__(model, make, **limits)
        groups = enumerate(model.spec.cache_groups)
        owners = {layer: number for number, group in groups for layer in group.layers}
        self.runner.groups_of_layers = [owners[layer] for layer in range(len(owners))]
        self.runner.allocators = self.engine.scheduler.cache.allocators

    def answer(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """Of one prompt, alone."""
        return self.answers([prompt], [params])[0]


def same(one: Answer, other: Answer) -> None:
    """Equal tokens, and log-probabilities that are nearly so."""
    assert one.tokens == other.tokens
    for first, second in zip(one.logprobs, other.logprobs, strict=True):
        assert abs(first.logprob - second.logprob) < 5e-5


def is_all_poison(runner: Poisoned) -> bool:
    """Whether nothing but NaN is in any layer's pages."""
    return all(bool(tensor.isnan().all()) for tensor in itertools.chain(*runner.kv.layers))
