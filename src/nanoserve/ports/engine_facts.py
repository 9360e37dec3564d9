"""Values about an engine: fixed facts, its state at one moment, and a few counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


def _counts(count: int | tuple[int, ...]) -> tuple[int, ...]:
    return count if isinstance(count, tuple) else (count,)


@attrs.frozen(kw_only=True)
class EngineSizes:
    """The sizes of an engine, decided once and passed on unchanged.

    Attributes:
        max_num_seqs: device rows, so the most sequences in one step.
        max_num_batched_tokens: the most tokens of one step.
        max_model_len: the longest sequence, prompt and output together.
        vocab_size: token ids lie below it.
        block_size: tokens per KV block.
        num_blocks: KV blocks (or states) of each cache group, the sink not counted, or one number for every group; none
            until memory is shared out.
        prefix_caching: whether computed blocks are kept by content and reused for equal prefixes.
        host_slots: KV blocks that host memory holds beside; 0 if nothing is kept there.
        max_loras: slots for adapters, so the most that one step computes with; 0 if there are none.
        max_lora_rank: the largest rank of an adapter.
        max_logprobs: how many of the likeliest tokens a request may have reported for each position.
        processed_logprobs: whether the log-probabilities of answers are of what was drawn from, not of the model's own logits.
        max_width: the most tokens that one row computes in a decoding step, its newest and drafts behind it; 1 where nothing is drafted.
        kv_cache_dtype: what keys and values of all earlier tokens are kept in, by the name of the setting; a part of every prefix's name.
        routed_experts: layers, experts of a token in one, and bytes of an expert's number, where it is recorded which ones tokens go
            through; else empty.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: tuple[int, ...] = attrs.field(default=(), converter=_counts)
    prefix_caching: bool = True
    host_slots: int = 0
    max_loras: int = 0
    max_lora_rank: int = 0
    max_logprobs: int = 20
    processed_logprobs: bool = False
    max_width: int = 1
    kv_cache_dtype: str = "auto"
    routed_experts: tuple[int, ...] = ()

    @property
    def kv_share(self) -> str:
        """The name of the KV cache's share of the memory."""
        return "KV cache" if self.kv_cache_dtype == "auto" else f"KV cache in {self.kv_cache_dtype}"

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks of the largest cache group, which say how many tokens the cache can hold."""
        return max(self.num_blocks, default=0)

    @property
    def max_table(self) -> int:
        """Entries of the longest block table."""
        return -(-self.max_model_len // self.block_size)

    def sizes(self) -> dict[str, Any]:
        """Only these fields, by name, for a value with more fields."""
        return {each.name: getattr(self, each.name) for each in attrs.fields(EngineSizes)}


@attrs.frozen(kw_only=True)
class EngineFacts(EngineSizes):
    """Facts that are fixed when an engine is ready.

    Attributes:
        pid: the process that computes.
        model: the folder or hub name it was started with; "built-in" for the embedded model.
        device: where it computes, cpu or cuda, and `dtype` in which numbers.
        threads: processor threads.
        tensor_parallel_size: processes that compute the model.
        depth: steps in flight at once.
        loras: the names of the adapters that requests may name.
        kv_bytes: what all KV blocks take together.
        memory: bytes of the device by what they are for; empty on a CPU.
        products: what multiplies, by the form that weights are kept in; on a GPU for each number of rows.
        start_phases: seconds that each part of the start took, by name.
    """

    pid: int
    model: str
    device: str
    dtype: str
    threads: int = 1
    tensor_parallel_size: int = 1
    depth: int = 1
    loras: tuple[str, ...] = ()
    kv_bytes: int = 0
    memory: Mapping[str, int] = attrs.field(factory=dict)
    products: Mapping[str, str] = attrs.field(factory=dict)
    start_phases: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def budget(self) -> dict[str, str | int]:
        """Settings that the start chose because nobody set them, as logs and reports show them."""
        names = (
            *("num_kv_blocks", "kv_bytes", "kv_cache_dtype", "max_model_len", "dtype", "threads"),
            *("device", "max_num_seqs", "max_num_batched_tokens", "depth"),
        )
        return {name: getattr(self, name) for name in names}


@attrs.frozen(kw_only=True)
class TierCounts:
    """One tier of the KV cache beside the device: its content and its counts since the start of its process, in blocks.

    Attributes:
        capacity: the most that it holds.
        stored: carried into it, and `loaded` out of it, towards the device.
        evicted: displaced by others.
        refused: not carried into it because all was in use, or for a directory also found damaged or missing.
    """

    capacity: int = 0
    held: int = 0
    stored: int = 0
    loaded: int = 0
    evicted: int = 0
    refused: int = 0


@attrs.frozen
class RunnerCounts:
    """Counts that only a runner can make, since it was built; a runner without counts returns `RunnerCounts()`.

    Attributes:
        device_wait_seconds: how long `collect` has waited for a device that is not the CPU.
        late_compiles: kernels that were not ready when a step needed them.
        graph_steps: steps by how they were launched (graph, eager); empty on a CPU.
        expert_tokens: by rank, where each has whole experts, the tokens that those computed, a token once for each of its experts;
            `busiest_expert_tokens` would be those of a rank that had the most in every layer.
    """

    device_wait_seconds: float = 0.0
    late_compiles: int = 0
    graph_steps: Mapping[str, int] = attrs.field(factory=dict)
    expert_tokens: Mapping[str, int] = attrs.field(factory=dict)
    busiest_expert_tokens: int = 0


@attrs.frozen(kw_only=True)
class EngineState(RunnerCounts):
    """The engine's state at one moment; counters count from the start of its process.

    Attributes:
        at: when this was read, `last_step` when the last step was collected (or the engine became ready).
        running, waiting: living sequences, by whether they hold a device row; `waiting_tokens` are the prompt tokens
            of the waiting ones.
        running_requests, waiting_requests: living requests, by whether one of their sequences holds a device row.
        free_blocks: blocks without a reference, cached ones among them; `leaked_blocks` must be 0.
        finished: ended sequences by reason (the values of `FinishReason`); `finished_requests` are requests, by the reason of
            the sequence that ended last.
        drafted_rows: rows that had drafts, in each step again; `draft_tokens` were compared, and `accepted_tokens` of these were right.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found; `prefix_lost` would have been but for
            the cache groups of one kind, by its name: states are kept at some lengths only, and windows are evicted first.
        grammar_compiles: constraints that were made ready, and `grammar_compile_seconds` of workers; `mask_seconds` kept the
            engine for masks, and `late_masks` sequences missed a step because theirs took longer.
        lora_requests: requests by the adapter that they named, of those that have their names still.
        paused: whether no steps are made although there may be work.
        tiers: what is kept of the KV cache beside the device, by tier (host, disk); empty if nothing is.
    """

    at: float
    last_step: float
    steps: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    accepted: int = 0
    finished: Mapping[str, int] = attrs.field(factory=dict)
    finished_requests: Mapping[str, int] = attrs.field(factory=dict)
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_rows: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_lost: Mapping[str, int] = attrs.field(factory=dict)
    free_blocks: int = 0
    cached_blocks: int = 0
    leaked_blocks: int = 0
    grammar_compiles: int = 0
    grammar_compile_seconds: float = 0.0
    mask_seconds: float = 0.0
    late_masks: int = 0
    lora_requests: Mapping[str, int] = attrs.field(factory=dict)
    paused: bool = False
    tiers: Mapping[str, TierCounts] = attrs.field(factory=dict)

    @property
    def expert_balance(self) -> float:
        """The average load of a rank's experts, divided by the load of the busiest rank of each layer; 1 is even."""
        busiest = self.busiest_expert_tokens * len(self.expert_tokens)
        return sum(self.expert_tokens.values()) / busiest if busiest else 1.0


@attrs.frozen
class EngineCounts:
    """Counts that are cheap enough to read after every turn; `EngineState` has the same numbers.

    Attributes:
        step: the newest that was planned since the engine was built; `steps` counts those since the counts began.
    """

    step: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    runner: RunnerCounts


@attrs.frozen
class Living:
    """The progress of a living sequence, in tokens."""

    num_prompt_tokens: int
    num_generated_tokens: int
