"""The engine's settings: model, dtype, memory, batch."""

from __future__ import annotations

import pathlib

import attrs

from nanoserve.entrypoints.compose.config.kinds import (
    integer,
    loras,
    memory,
    number,
    one_of,
    request_classes,
    size,
    text,
)
from nanoserve.entrypoints.compose.config.setting import optional, setting, switch
from nanoserve.ports.lora import MOST_RANK
from nanoserve.ports.sampling import MOST_LOGPROBS


@attrs.frozen(kw_only=True)
class EngineSettings:
    """Settings from which `compose` builds an engine. None means that it decides, and reports its decision."""

    model: str | None = optional(
        text("ID_OR_FOLDER"),
        "A model folder, a GGUF file, or the name of a model on the Hugging Face hub; in benchmarks also shape:NAME.",
        word="built-in",
    )
    revision: str | None = optional(
        text("REVISION"), "The branch, tag or commit to download from the hub.", word="main"
    )
    task: str = setting(
        "auto",
        one_of("auto", "generate", "embed", "classify", "rerank"),
        "Write text, or make vectors or classes of texts, or judge documents by queries; auto does what the model's files say.",
    )
    dtype: str = setting(
        "auto",
        one_of("auto", "float32", "bfloat16", "float16"),
        "The numbers to compute in; auto keeps the checkpoint's where the device multiplies them in hardware, else float32.",
    )
    device: str = setting(
        "auto", one_of("auto", "cpu", "cuda"), "Where to compute; auto takes the GPU if there is one."
    )
    quantization: str | None = optional(
        one_of("none", "int8", "int4", "fp8"),
        "Compress the weights while loading: int8 and int4 are for a CPU, fp8 and int4 for a GPU.",
    )
    quantize_head: str | None = optional(
        one_of("none", "int8", "fp8"), "Compress the head, too, or alone; for a GPU."
    )
    kv_cache_dtype: str = setting(
        "auto",
        one_of("auto", "fp8"),
        "Keep keys and values in the numbers that are computed with, or in 8-bit floats: half the memory, and sooner read.",
    )
    lora: str | None = optional(
        loras(), "LoRA adapters in PEFT's form that requests may name as their model."
    )
    max_loras: int | None = optional(
        integer(low=0, high=1024),
        "Adapters that one step computes with, in device memory; if not given, as many as --lora names.",
        word="auto",
    )
    max_lora_rank: int = setting(
        64, integer(low=1, high=MOST_RANK), "The largest rank of an adapter, for which memory is kept."
    )
    max_logprobs: int = setting(
        20,
        integer(low=0, high=MOST_LOGPROBS),
        "The most likely tokens that a request may have reported beside each token.",
    )
    logprobs_mode: str = setting(
        "raw_logprobs",
        one_of("raw_logprobs", "processed_logprobs"),
        "Report log-probabilities of the model's own logits, or of what is drawn from, after temperature, penalties and filters.",
    )
    enable_return_routed_experts: bool = switch(
        "Record which experts each token goes through, for /inference/v1/generate to report.",
    )
    tensor_parallel_size: int = setting(
        1,
        integer(low=1, high=64),
        "Processes that compute the model together, each with its part of the weights; on a GPU of its own where there are GPUs.",
    )
    expert_parallel: bool = switch(
        "Divide the experts of a mixture over those processes as whole ones rather than each of them; needs --tensor-parallel-size.",
    )
    max_model_len: int | None = optional(
        integer(low=2), "The longest sequence in tokens, prompt and output together.", word="auto"
    )
    max_num_seqs: int | None = optional(
        integer(low=1, high=4096),
        "The most sequences in one step; if not given, 512 on a GPU of 64 GiB and more, 256 on a smaller one and 64 on a CPU.",
        word="auto",
    )
    max_num_batched_tokens: int | None = optional(
        integer(low=1),
        "The most tokens computed in one step; if not given, 8192 on a GPU and 2048 on a CPU.",
        word="auto",
    )
    block_size: int = setting(16, integer(low=1, high=1024), "Tokens per block of the KV cache.")
    num_kv_blocks: int | None = optional(
        integer(low=1), "Blocks of the KV cache; overrides --kv-memory.", word="auto"
    )
    kv_memory: int | float | None = optional(
        memory(),
        "Memory for the KV cache: bytes (4GiB) or a fraction (0.5) of what is free; if not given, 0.92 of it on a GPU, and on "
        "a CPU 0.8 of it, at most 4 GiB.",
        word="auto",
    )
    enable_prefix_caching: bool = switch("Compute a prefix that several prompts share once.", default=True)
    kv_offload_memory: int | None = optional(
        size(), "Host memory for prefixes that the KV cache has no room for, such as 32GiB."
    )
    kv_offload_dir: str | None = optional(
        text("FOLDER"),
        "Write those prefixes to this folder, too, where a later start finds them; needs --kv-offload-memory.",
    )
    kv_offload_dir_size: int | None = optional(
        size(), "The most bytes in that folder; if not given, half of what its disk has free.", word="auto"
    )
    kv_offload_min_tokens: int = setting(
        256, integer(low=1), "A shorter stretch of a prefix is computed again rather than brought in."
    )
    kv_role: str = setting(
        "none",
        one_of("none", "prefill", "decode"),
        "Share --kv-offload-dir with engines that run: prefill answers when the blocks of a prompt are there, decode finds them.",
    )
    isolation: bool = switch(
        "Hash cached prefixes with BLAKE2b, so that no prompt can be made to collide with another's.",
    )
    policy: str = setting("fcfs", one_of("fcfs", "priority"), "Which waiting sequence comes first.")
    request_classes: str | None = optional(
        request_classes(),
        "Classes of requests with a priority and bounds of their own, which API keys can name.",
    )
    deferred_rows: int = setting(
        2,
        integer(low=1),
        "Lines of batches, and others of the class deferred, that share steps with answers that somebody waits for.",
    )
    watermark: float = setting(
        0.01, number(0.0, 0.99), "The fraction of blocks left free for running sequences to grow into."
    )
    max_itl_ms: float | None = optional(
        number(above=0.0),
        "Limit prefill so that tokens come at most this many milliseconds apart.",
        word="auto",
    )
    depth: int | None = optional(
        integer(low=1, high=4),
        "Steps in flight at once; if not given, 2 on a GPU and 1 on a CPU.",
        word="auto",
    )
    speculate: str = setting(
        "off",
        one_of("off", "auto", "ngram", "eagle3", "mtp", "draft"),
        "Guess tokens from what a sequence has said before, by --draft, or by layers of the model's own (mtp), and compute several at once; auto does where it pays. Answers stay the same.",
    )
    draft: str | None = optional(
        text("ID_OR_FOLDER"),
        "An EAGLE-3 head, or a smaller model of the same vocabulary, that guesses tokens for the model; implies --speculate draft. The name embedded is that of the shipped model's head.",
    )
    enforce_eager: bool = switch(
        "Launch every kernel on its own instead of replaying CUDA graphs; for debugging."
    )
    deterministic: bool = switch(
        "Compute the same logits, bit for bit, whatever else is in the batch; slower.",
    )
    park_spare: bool = switch(
        "Have the spare of `serve` loaded and asleep, so that it takes over in a second; takes host memory for the model once more.",
    )
    paranoid: bool = switch("Audit the engine's state after every step.")
    kv_events_port: int | None = optional(
        integer(0, 65535),
        "Publish on this port which prefixes are cached, as vLLM does over ZeroMQ; needs nanoserve[events].",
    )
    kv_events_host: str = setting(
        "127.0.0.1", text("ADDRESS"), "The address to publish on: subscribers read the prompts."
    )
    kv_events_replay_port: int | None = optional(integer(0, 65535), "Send subscribers here what they missed.")
    kv_events_topic: str | None = optional(text("TOPIC"), "The topic to publish under, such as kv@POD@MODEL.")
    kv_events_format: str = setting(
        "map", one_of("map", "array"), "How events are written; array is for consumers from before June 2026."
    )
    threads: int | None = optional(
        integer(low=1, high=1024),
        "Processor threads; all physical cores that this process may use if not given.",
        word="auto",
    )


def shown_model(model: str | None) -> str:
    """A model's name on the hub, or that of its folder or file, which shows no path."""
    if model is None:
        return "built-in"
    path = pathlib.Path(model).expanduser()
    return path.stem if path.is_file() else path.resolve().name if path.is_dir() else model
