"""Settings of `nanoserve serve`: addresses, clients and limits."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import (
    Secret,
    host_names,
    integer,
    number,
    one_of,
    origins,
    secrets,
    size,
    text,
    texts,
)
from nanoserve.entrypoints.compose.config.setting import optional, setting, switch

_SECONDS: Final = number(above=0.0)


@attrs.frozen(kw_only=True)
class ListenSettings:
    """Where the server listens, and how long it takes to leave."""

    host: str = setting("127.0.0.1", text("ADDRESS"), "The address to listen on; 0.0.0.0 or :: is every one.")
    port: int = setting(8000, integer(0, 65535), "The port to listen on; 0 takes a free one.")
    uds: str | None = optional(text("PATH"), "Listen on a Unix socket (mode 0600) instead of host and port.")
    admin_uds: str | None = optional(
        text("PATH"), "Listen for administrators on this Unix socket (mode 0600)."
    )
    metrics_port: int | None = optional(
        integer(0, 65535), "Answer /metrics on this port too, without a key; for scrapers that have none."
    )
    backlog: int = setting(2048, integer(1, 65535), "Connections that may wait to be accepted.")
    drain_timeout: float = setting(
        30.0, number(0.0), "Seconds that living requests are given after SIGTERM or Ctrl-C."
    )
    in_process: bool = switch("Run the engine in a thread of the server's process; for debugging.")
    http_workers: int | None = optional(
        integer(1, 64),
        "Processes that answer HTTP, over one engine; up to 3 beside a GPU if there are processors for them, else 1, if not given.",
        word="auto",
    )
    spare: bool = switch(
        "Keep a second process with everything imported, to be the engine should it die.", default=True
    )
    ui: bool = switch("Serve the page at / that shows the engine, and a playground.", default=True)
    served_model_name: tuple[str, ...] = setting(
        (),
        texts("NAME"),
        "The name that clients use for the model; repeatable, the first is what answers say.",
    )
    model_alias: tuple[str, ...] = setting(
        (),
        texts("PATTERN"),
        "Serve the model under these names too, * for any text (claude-*); repeatable. Lists do not show them.",
    )
    otlp_endpoint: str | None = optional(
        text("URL"), "Send OpenTelemetry traces to this collector (OTLP over HTTP)."
    )


@attrs.frozen(kw_only=True)
class AccessSettings:
    """The clients of the server, and their rights."""

    api_key: tuple[Secret, ...] = setting(
        (), secrets(), "A key that clients must send; repeatable. In the environment one key or a JSON array."
    )
    api_key_file: str | None = optional(
        text("FILE"),
        "Keys: one per line, or TOML with name, request class, priority and rate limit for each.",
    )
    rate_limit: float | None = optional(
        _SECONDS, "Requests per minute of each key that has no limit of its own."
    )
    share_prefix_cache: bool = switch(
        "Let prompts of different keys share cached prefixes; timing then tells what others sent.",
    )
    lora_dir: str | None = optional(
        text("FOLDER"),
        "Let clients load LoRA adapters from folders below this one, by /v1/load_lora_adapter; needs --max-loras.",
    )
    steering: bool = switch("Let trainers pause the engine and steer it otherwise (see docs/rl.md).")
    steering_key: tuple[Secret, ...] = setting(
        (),
        secrets(),
        "A key that --steering wants and clients do not have; needed where clients have keys, or on other machines.",
    )
    weight_dir: str | None = optional(
        text("FOLDER"), "Let trainers update the weights from folders below this one; needs --steering."
    )
    cors_origin: tuple[str, ...] = setting(
        (), origins(), "A web origin whose pages may call the server; repeatable, * is every one."
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        host_names(),
        "A name besides localhost that requests may have in their Host header; repeatable. The header is looked at "
        "without keys on a loopback address; giving a name turns that on everywhere.",
    )


@attrs.frozen(kw_only=True)
class BoundSettings:
    """Limits on requests, connections and times."""

    max_body_size: int = setting(4 * 2**20, integer(low=1024), "The most bytes of a request's body.")
    max_header_size: int = setting(
        32 * 2**10, integer(low=1024), "The most bytes of a request's line and headers."
    )
    max_json_depth: int = setting(64, integer(1, 500), "How deep objects and arrays may be nested in a body.")
    max_connections: int = setting(4096, integer(low=1), "The most connections at once.")
    header_timeout: float = setting(10.0, _SECONDS, "Seconds in which a request's headers must be here.")
    body_timeout: float = setting(60.0, _SECONDS, "Seconds in which a request's body must be here.")
    send_timeout: float = setting(60.0, _SECONDS, "Seconds after which a client that reads nothing is left.")
    keep_alive: float = setting(75.0, _SECONDS, "Seconds that an idle connection is kept.")
    strict_params: bool = switch("Refuse requests with unknown fields instead of warning.")
    json_whitespace: str = setting(
        "bounded",
        one_of("none", "bounded", "any"),
        "White space between the parts of JSON under a grammar: one blank or an indented line (bounded), none, or any.",
    )
    max_waiting_requests: int = setting(1024, integer(low=0), "Requests that may wait for the engine.")
    max_waiting_tokens: int = setting(2**20, integer(low=1), "Prompt tokens that may wait together.")
    queue_timeout: float | None = optional(_SECONDS, "Seconds that a request may wait before it is computed.")
    request_timeout: float | None = optional(_SECONDS, "Seconds a request may take altogether.")
    conversation_lifetime: float = setting(86400.0, _SECONDS, "Seconds that stored answers are kept.")
    ping_interval: float = setting(
        10.0, _SECONDS, "Seconds of silence after which a stream says it is alive."
    )
    stall_timeout: float = setting(
        60.0, _SECONDS, "Seconds without a step, while there is work, after which the engine is restarted."
    )


@attrs.frozen(kw_only=True)
class WatchSettings:
    """Bounds of those who watch the engine, and of the log of its steps."""

    max_viewers: int = setting(32, integer(low=0), "The most that may watch the engine at once.")
    trace_limit: int = setting(
        256 * 2**20,
        size(low=2**16),
        "When the step log is as large it moves to FILE.1, and a new one begins.",
    )


@attrs.frozen(kw_only=True)
class BatchSettings:
    """The folder of clients' files and batches, and its limits."""

    batch_dir: str | None = optional(
        text("FOLDER"), "Serve /v1/files and /v1/batches, and keep what belongs to them in this folder."
    )
    batch_lines: int | None = optional(
        integer(low=1),
        "Lines of batches in flight at once; as many as the engine has rows if not given.",
        word="auto",
    )
    max_files: int = setting(
        1000, integer(low=1), "Files that each client may keep, and batches that may be under way."
    )
    max_file_size: int = setting(200 * 2**20, size(low=1), "The most bytes of a file.")


@attrs.frozen(kw_only=True)
class ServeSettings:
    """All settings of a server except the model's and the engine's."""

    listen: ListenSettings = ListenSettings()
    access: AccessSettings = AccessSettings()
    bounds: BoundSettings = BoundSettings()
    watch: WatchSettings = WatchSettings()
    batches: BatchSettings = BatchSettings()
