"""The kernels of attention to both sides, and a model's inputs of their cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nanoserve.adapters.pytorch.kernel_checks import Bench, Check, of_each
from nanoserve.kernels.paged_attention import cases as paged_attention
from nanoserve.kernels.rope_and_cache import cases as rope_and_cache
from nanoserve.kernels.testing_attention import Heads
from nanoserve.ports.layer_spec import BidirectionalSpec


def _heads(bench: Bench) -> list[Heads]:
    tables = bench.rotations()
    return [
        Heads(
            each.num_heads, each.num_heads, each.head_dim, window=each.window, rotations=tables[each.rotation]
        )
        for each in bench.mixers(BidirectionalSpec)
    ]


def _unwindowed(bench: Bench) -> list[Heads]:
    return [each._replace(window=None) for each in _heads(bench)[:1]]


CHECKS: Final[Sequence[Check]] = (
    Check("rope_and_cache, encoder", of_each(rope_and_cache.check_rope_and_cache, _unwindowed)),
    Check("prefill_attention, both sides", of_each(paged_attention.check_bidirectional_attention, _heads)),
)
