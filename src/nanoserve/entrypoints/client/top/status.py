"""What a server says of itself, as it comes over the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from nanoserve.entrypoints.client.protocol import ProtocolError


class LatencyQuantiles(msgspec.Struct, frozen=True):
    """Seconds that half, and all but one in a hundred, stay below."""

    p50: float
    p99: float


class BlockCounts(msgspec.Struct, frozen=True):
    """Of the KV cache; cached ones hold a prefix that can be found, and are free as well."""

    total: int = 0
    free: int = 0
    cached: int = 0


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One `status` event of `/live`; counters go on over restarts of the engine. What is unknown is ignored."""

    status: str
    draining: bool = False
    restarts: int = 0
    running: int = 0
    waiting: int = 0
    finished: dict[str, int] = {}
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    blocks: BlockCounts = BlockCounts()
    steps: int = 0
    ttft: LatencyQuantiles | None = None
    itl: LatencyQuantiles | None = None
    viewers: int = 0

    @property
    def state(self) -> str:
        """The engine's, in a word; a server that takes nothing new any more is draining."""
        return "draining" if self.draining and self.status == "ready" else self.status

    @property
    def kv_use(self) -> float:
        """The fraction of blocks that a sequence holds, 0 to 1."""
        total = self.blocks.total
        return 1 - self.blocks.free / total if total else 0.0

    @property
    def prefix_hit_rate(self) -> float | None:
        """The fraction of prompt tokens that were found in the cache, of those looked up."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else None


class ServerDescription(msgspec.Struct, frozen=True):
    """What the server says of itself beside its status; empty where it does not."""

    models: list[str] = []
    engine: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The model, and what computes it."""
        parts = (self.models[:1], [self.engine.get("device")], [self.engine.get("dtype")])
        return ", ".join(str(each) for part in parts for each in part if each)


def read_status(data: bytes) -> ServerStatus:
    """The content of a `status` event. Raises `ProtocolError`."""
    try:
        return msgspec.json.decode(data, type=ServerStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the server's status cannot be read ({error}); is it of another release?"
        raise ProtocolError(message) from None


def read_server(body: bytes) -> ServerDescription:
    """The answer of `/server_info`; empty where it is something else."""
    try:
        return msgspec.json.decode(body, type=ServerDescription)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerDescription()
