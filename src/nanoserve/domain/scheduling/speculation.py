"""How wide the next step is: how many tokens each decoding row computes, its newest and drafts behind it (`ports/step.py`)."""

from __future__ import annotations

from nanoserve.domain.scheduling.sequence_table import Population
from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.ports.step import StepResult


class Speculation:
    """Drafts for the rows of one scheduler; they take nothing from anybody: where blocks or a step's budget are short, it is narrow."""

    def __init__(self, population: Population) -> None:
        self._population = population

    def choose_width(self) -> int:
        """Tokens that decoding rows compute in the next step; 0 where it must wait for steps in flight.

        A narrow step has no limits of rows on the device, so it waits until it is known that no row has come to its end.
        """
        all_of_it = self._population
        members, cache, limits = all_of_it.table.decoding, all_of_it.cache, all_of_it.limits
        width = limits.max_width
        crowded = width * len(members) > limits.max_num_batched_tokens
        if crowded or not members or cache.has_states or all_of_it.constraints.matchers or all_of_it.suspects:
            width = 1
        blocks = -(-width // limits.block_size)
        if width > 1 and cache.has_room(blocks * len(members.needing_blocks(width))):
            return width
        members.tighten()
        is_short = members.slack and not cache.has_room(len(members.needing_blocks(1)))
        return 0 if is_short or members.may_overrun() else 1

    def note(self, flight: InFlightStep, result: StepResult) -> None:
        """A step is about to land."""
        population = self._population
        population.counters.draft_tokens += result.num_drafts
        population.counters.accepted_tokens += len(result.token_ids) - len(flight.sampling)
        for sequence, lacks in flight.surplus(result):
            if sequence not in population.table.decoding:  # the set finds out by itself
                sequence.num_scheduled_tokens -= lacks
