"""Settings of `nanoserve bench`: what is run, how often, and what it is compared with."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import Choice, Integer, Number, Optional
from nanoserve.entrypoints.compose.config.list_kinds import Integers
from nanoserve.entrypoints.compose.config.setting import Setting, setting, settings_of

WORKLOAD_NAMES: Final = ("fixed", "nano", "prefill", "long")
PEER_NAMES: Final = ("hf", "vllm")


@attrs.frozen(kw_only=True)
class BenchSettings:
    """What the benchmarks do. None leaves a number to the workload."""

    workload: str = setting(
        "fixed",
        Choice(WORKLOAD_NAMES),
        "fixed: prompts of equal lengths; nano: 256 prompts, lengths in and out uniform in 100..1024; "
        "prefill: prompts and one token each; long: one prompt with a long context.",
    )
    num_prompts: int | None = setting(
        None, Optional(Integer(low=1)), "Prompts of a run; if not given, what the workload says."
    )
    input_len: int | None = setting(
        None, Optional(Integer(low=1)), "Tokens of each prompt; in the workload nano the most."
    )
    output_len: int | None = setting(
        None, Optional(Integer(low=1)), "Tokens to generate for each prompt; in the workload nano the most."
    )
    batch_sizes: tuple[int, ...] = setting((1, 8, 64), Integers(low=1), "Prompts at once, each in turn.")
    seeds: int = setting(3, Integer(low=1), "Measured runs, each with a seed of its own.")
    warmup: int = setting(1, Integer(low=0), "Runs before them that are not measured.")
    bandwidth: float | None = setting(
        None,
        Optional(Number(0.0, above=True)),
        "Terabytes per second that memory can be read with, for the floor; measured on a GPU if not given.",
    )
    compute: float | None = setting(
        None,
        Optional(Number(0.0, above=True)),
        "Teraflops per second that matrices are multiplied with, for the floor; measured on a GPU if not given.",
    )
    vs: str | None = setting(
        None,
        Optional(Choice(("none", *PEER_NAMES)), "none"),
        "Run the same prompts through another engine too: hf is transformers' generate.",
    )


BENCH_SETTINGS: Final[tuple[Setting, ...]] = settings_of(BenchSettings, table="bench")
