"""The inputs of the keys and values in a block that are an engine's, all in one place; those of a request are in its blocks' names.

The name of a block is a hash of its tokens and of all before them, from a root (`names.hash_root`). It stands for what one engine computes.
Blocks that outlive their engine also belong to its `fingerprint`, and only an engine with the same one reads them.

Each input is listed with its reason, and so are settings that change no key. A setting in neither list counts as an input, which
may lose blocks and never an answer, and a test fails until it is listed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

ENGINE_INPUTS: Final[Mapping[str, str]] = {
    "spec": "the whole model as numbers: rope as scaled for the longest sequence, norms, scales, windows, layers",
    "weights": "models of one shape differ in nothing else",
    "release": "a release of nanoserve may compute otherwise, or order a block otherwise",
    "arithmetic": "kinds of devices and releases of torch round otherwise",
    "device": "a CPU and a GPU have different kernels, and order a block otherwise",
    "dtype": "the numbers that keys are computed in and kept in",
    "quantization": "compressed weights make other keys",
    "kv_cache_dtype": "keys in 8-bit floats are others, and are hashed from a root of their own",
    "deterministic": "it has kernels of its own, and promises bits that blocks of other engines do not have",
    "enforce_eager": "a step that is launched kernel by kernel may take other kernels than a captured one",
    "threads": "how many compute may round sums otherwise; counted where bits are promised, on a CPU",
    "tensor_parallel_size": "a rank keeps the keys of its heads alone, and sums over ranks are rounded otherwise",
    "expert_parallel": "sums over ranks are rounded otherwise",
    "block_size": "tokens in a block",
    "block_bytes": "bytes of a block",
    "isolation": "decides the hash that names blocks",
}
"""Inputs of an engine."""
_ROOM: Final = (
    "how much is held or computed at once; rounding that depends on it is excluded by deterministic"
)
_ORDER: Final = "which request comes first"
_EVENTS: Final = "reports what is cached"
ENGINE_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("model", "revision"), "a name; what the files hold counts as spec and weights"),
    "max_model_len": "counts where it scales rope, as a part of spec",
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "num_kv_blocks", "kv_memory", "depth"), _ROOM),
    **dict.fromkeys(("speculate", "draft"), _ROOM),
    **dict.fromkeys(("kv_offload_memory", "kv_offload_dir", "kv_offload_dir_size"), "where blocks are kept"),
    "kv_offload_min_tokens": "which blocks are worth reading",
    "kv_role": "who reads them",
    "task": "what prompts are made into",
    "quantize_head": "the head reads no keys",
    "enable_prefix_caching": "without it there are no tiers",
    **dict.fromkeys(("policy", "request_classes", "deferred_rows", "watermark", "max_itl_ms"), _ORDER),
    **dict.fromkeys(("paranoid", "park_spare"), "checks counts; keeps another process"),
    **dict.fromkeys(("max_logprobs", "logprobs_mode", "enable_return_routed_experts"), "what is reported"),
    **dict.fromkeys(("lora", "max_loras", "max_lora_rank"), "adapters count by their digests"),
    **dict.fromkeys(("kv_events_port", "kv_events_host", "kv_events_replay_port"), _EVENTS),
    **dict.fromkeys(("kv_events_topic", "kv_events_format"), _EVENTS),
}


def fingerprint(facts: Mapping[str, object]) -> bytes:
    """The fingerprint of an engine's blocks, in 32 bytes. `facts` are its inputs and all its settings by name, as they were decided."""
    counted = sorted((name, repr(fact)) for name, fact in facts.items() if name not in ENGINE_WITHOUT_EFFECT)
    return hashlib.sha256(repr(counted).encode()).digest()
