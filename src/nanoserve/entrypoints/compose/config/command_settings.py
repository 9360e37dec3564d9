"""Settings of commands: the log, the step log, the server to call, and those of one command each."""

from __future__ import annotations

import math
from typing import Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import (
    boolean,
    integer,
    integers,
    number,
    numbers,
    one_of,
    pairs,
    text,
)
from nanoserve.entrypoints.compose.config.setting import optional, setting, switch


@attrs.frozen(kw_only=True)
class LogSettings:
    """Settings of the log on standard error."""

    log_level: str = setting(
        "warning", one_of("debug", "info", "warning", "error"), "Log what is at least this important."
    )
    log_json: bool = switch("Log one JSON object per line.")
    debug: bool = switch("Show the traceback of an error.")


@attrs.frozen(kw_only=True)
class AnswerSettings:
    """How answers are read."""

    dialect: str | None = optional(
        text("NAME"),
        "How the model writes reasoning and calls of tools, where its files do not say; none leaves answers as they come.",
        word="auto",
    )


@attrs.frozen(kw_only=True)
class TraceSettings:
    """The file of the step log, and its contents."""

    trace: str | None = optional(
        text("FILE"),
        "Write the engine's step log here, for `nanoserve inspect`; a name that ends in .gz is compressed.",
    )
    trace_words: bool = switch(
        "Write into the step log also what was asked and answered; otherwise it has no word.",
    )


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Which server is talked to; its key is no setting, so that no page of settings shows it."""

    url: str | None = optional(text("URL"), "The server, such as http://127.0.0.1:8000, with or without /v1.")


@attrs.frozen(kw_only=True)
class GenerateSettings:
    """How prompts are understood and how answers are shown."""

    chat: bool = switch("Treat the prompt as a user's message and apply the model's chat template.")
    system: str | None = optional(text(), "The system message that opens the conversation; implies --chat.")
    stream: bool | None = optional(
        boolean(), "Show the text while it grows; on for a single prompt if not given.", word="auto"
    )
    stats: bool = switch("Report tokens, times and rates on standard error.")
    json: bool = switch("Print one JSON object per prompt.")

    @property
    def is_chat(self) -> bool:
        """True if plain prompts are messages."""
        return self.chat or self.system is not None


@attrs.frozen(kw_only=True)
class VerifySettings:
    """Settings of the comparison with transformers, and how close it must be."""

    tolerance: float = setting(
        1e-4,
        number(above=0.0),
        "The largest error accepted, as a fraction of the reference's magnitude (at least 1).",
    )
    verify_prompt: str = setting(
        "Once upon a time there was a little fox who lived near the river.",
        text(),
        "The prompt to compare on.",
    )
    verify_tokens: int = setting(16, integer(low=1), "Greedy tokens to compare.")


@attrs.frozen(kw_only=True)
class BenchSettings:
    """Settings of the benchmarks. None leaves a number to the workload."""

    workload: str = setting(
        "fixed",
        one_of("fixed", "nano", "prefill", "long"),
        "fixed: prompts of equal lengths; nano: 256 prompts, lengths in and out uniform in 100..1024; "
        "prefill: prompts and one token each; long: one prompt with a long context.",
    )
    num_prompts: int | None = optional(
        integer(low=1), "Prompts of a run; if not given, what the workload says.", word="auto"
    )
    input_len: int | None = optional(
        integer(low=1), "Tokens of each prompt; in the workload nano the most.", word="auto"
    )
    output_len: int | None = optional(
        integer(low=1), "Tokens to generate for each prompt; in the workload nano the most.", word="auto"
    )
    batch_sizes: tuple[int, ...] = setting((1, 8, 64), integers(low=1), "Prompts at once, each in turn.")
    seeds: int = setting(3, integer(low=1), "Measured runs, each with a seed of its own.")
    warmup: int = setting(1, integer(low=0), "Runs before them that are not measured.")


LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""Time to the first token, between two pieces, per further token, and of the whole request."""


_OBJECTIVES: Final = pairs(
    "NAME:MS,...",
    f"pairs written NAME:MILLISECONDS, the names being {', '.join(LATENCIES)}",
    lambda name: name.strip().lower(),
    lambda name, bound: name in LATENCIES and 0 < bound < math.inf,
)


@attrs.frozen(kw_only=True)
class ServeBenchSettings:
    """Settings of a load: its requests, their rate, and its objectives."""

    endpoint: str = setting(
        "completions",
        one_of("completions", "chat"),
        "completions sends prompts of random token ids, chat messages of random words.",
    )
    request_rate: tuple[float, ...] | None = optional(
        numbers(),
        "Open loop: requests per second, sent at random (Poisson) moments whatever is still unanswered; several are a sweep.",
    )
    concurrency: tuple[int, ...] | None = optional(
        integers(low=1),
        "Closed loop: clients that each send a request when they have their answer; several are a sweep. "
        "8 if neither this nor --request-rate is given.",
    )
    slo: tuple[tuple[str, float], ...] = setting(
        (), _OBJECTIVES, "Most milliseconds of a good request: ttft:500,itl:50,tpot:50,e2e:5000."
    )
    trace_scale: float = setting(1.0, number(above=0.0), "Multiplies the lengths and times of a --trace.")
    warmup_requests: int = setting(4, integer(low=1), "Requests sent before, and not counted.")
    client_timeout: float = setting(600.0, number(above=0.0), "Seconds after which a request is given up.")
