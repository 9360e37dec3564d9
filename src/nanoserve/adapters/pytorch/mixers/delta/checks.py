"""The kernels of gated delta nets, and a model's inputs of their cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from nanoserve.adapters.pytorch.kernel_checks import Bench, Check, drafting, fastest, invariant, of_each
from nanoserve.adapters.pytorch.mixers.delta.part import heads_of
from nanoserve.kernels.delta_rule import cases as delta_rule
from nanoserve.kernels.recurrent import DeltaHeads
from nanoserve.kernels.testing import Comparison
from nanoserve.ports.layer_spec import DeltaSpec


def _heads(bench: Bench) -> list[DeltaHeads]:
    return list(map(heads_of, bench.mixers(DeltaSpec)))


def _check_newest(bench: Bench) -> Iterator[Comparison]:
    """States through one token each, with the arithmetic that serving asks for."""
    for heads in _heads(bench):
        yield from delta_rule.check_delta_newest(bench.inputs, heads, invariant=bench.deterministic)


def _check_drafts(bench: Bench) -> Iterator[Comparison]:
    """A place's tokens are chunks that leave its state, and then such as count."""
    for keep, heads in itertools.product((False, True), _heads(bench)):
        yield from delta_rule.check_delta_chunks(
            bench.inputs, heads, [(5, bench.max_width), (64, 1)], keep=keep
        )


CHECKS: Final[Sequence[Check]] = (
    Check("delta_rule_newest", _check_newest),
    Check("delta_rule_chunks", of_each(delta_rule.check_delta_chunks, _heads), invariant),
    Check("delta_rule_chunks, drafts", _check_drafts, drafting),
    Check("delta_rule_tiles", of_each(partial(delta_rule.check_delta_chunks, tiled=True), _heads), fastest),
)
