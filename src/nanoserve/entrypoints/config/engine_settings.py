"""The engine's settings: which model, in which numbers, with how much memory, for how many at once."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.config.kinds import Boolean, Choice, Integer, Number, Optional, Text
from nanoserve.entrypoints.config.memory_kind import Memory
from nanoserve.entrypoints.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class EngineSettings:
    """What `bootstrap` needs to build an engine. None means that `bootstrap` decides, and says what it decided."""

    model: str | None = setting(
        None,
        Optional(Text("ID_OR_FOLDER"), "built-in"),
        "A model folder, or the name of a model on the Hugging Face hub.",
    )
    revision: str | None = setting(
        None, Optional(Text("REVISION"), "main"), "The branch, tag or commit to download from the hub."
    )
    dtype: str = setting(
        "auto",
        Choice(("auto", "float32", "bfloat16", "float16")),
        "The numbers to compute in; auto takes bfloat16 where the checkpoint is bfloat16 and the processor has it, else float32.",
    )
    device: str = setting("auto", Choice(("auto", "cpu")), "Where to compute.")
    quantization: str | None = setting(
        None, Optional(Choice(("none", "int8", "int4")), "none"), "Compress the weights while loading."
    )
    max_model_len: int | None = setting(
        None, Optional(Integer(low=2)), "The longest sequence in tokens, prompt and output together."
    )
    max_num_seqs: int = setting(64, Integer(low=1, high=4096), "The most sequences in one step.")
    max_num_batched_tokens: int = setting(2048, Integer(low=1), "The most tokens computed in one step.")
    block_size: int = setting(16, Integer(low=1, high=1024), "Tokens per block of the KV cache.")
    num_kv_blocks: int | None = setting(
        None, Optional(Integer(low=1)), "Blocks of the KV cache; overrides --kv-memory."
    )
    kv_memory: int | float | None = setting(
        None, Optional(Memory()), "Memory for the KV cache: bytes (4GiB) or a fraction (0.5) of what is free."
    )
    enable_prefix_caching: bool = setting(
        True, Boolean(), "Compute a prefix that several prompts share only once."
    )
    isolation: bool = setting(
        False,
        Boolean(),
        "Hash cached prefixes with SHA-256, so that no prompt can be made to collide with another's.",
    )
    policy: str = setting("fcfs", Choice(("fcfs", "priority")), "Which waiting sequence comes first.")
    watermark: float = setting(
        0.01, Number(0.0, 0.99), "The fraction of blocks left free for running sequences to grow into."
    )
    max_itl_ms: float | None = setting(
        None,
        Optional(Number(0.0, above=True)),
        "Milliseconds between two tokens that prefill is cut short to keep.",
    )
    depth: int = setting(1, Integer(low=1, high=2), "Steps in flight at once.")
    paranoid: bool = setting(False, Boolean(), "Audit the engine's books after every step.")
    threads: int | None = setting(
        None,
        Optional(Integer(low=1, high=1024)),
        "Processor threads; all physical cores that this process may use if not given.",
    )


ENGINE_SETTINGS: Final[tuple[Setting, ...]] = settings_of(EngineSettings, table="")
