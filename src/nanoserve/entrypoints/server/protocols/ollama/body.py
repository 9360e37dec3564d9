"""The bodies of Ollama's routes: every field that its clients send, honoured, refused by name, or without effect here."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct, field

from nanoserve.entrypoints.server.http.field_support import only, refusing
from nanoserve.entrypoints.server.http.sampling_fields import sampling_body
from nanoserve.ports.parameter import Api


@sampling_body(Api.OLLAMA)
class Options(Struct, kw_only=True):
    """How to sample. Those of the last group say how another server computes; they change nothing here."""

    num_ctx: int | None = None
    num_predict: int | None = None
    seed: int | None = None

    mirostat_tau: Any = None
    mirostat_eta: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    use_mmap: Any = None
    use_mlock: Any = None


class _Asked(Struct, kw_only=True):
    """What both ways of asking have; `keep_alive` has no effect, as the model stays in memory."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    format: str | dict[str, Any] | None = None


@refusing
class GenerateBody(_Asked, kw_only=True):
    """The body of `/api/generate`; without a prompt it asks to load the model."""

    prompt: str = ""
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class CalledFunction(Struct, kw_only=True):
    """What was called."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    index: int | None = None
    description: str | None = None


class ToolCall(Struct, kw_only=True):
    """One call of an earlier answer."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Turn(Struct, kw_only=True):
    """One turn of a conversation; those of the role tool say what the tool `tool_name` said."""

    role: str
    content: str = ""
    tool_name: str | None = None
    tool_call_id: str | None = None
    thinking: str | None = None
    images: Annotated[Any, only([])] = None
    tool_calls: list[ToolCall] | None = None


@refusing
class ChatBody(_Asked, kw_only=True):
    """The body of `/api/chat`; without messages it asks to load the model."""

    messages: list[Turn] | None = None
    tools: list[dict[str, Any]] | None = None


class ShowBody(Struct, kw_only=True):
    """The body of `/api/show`; `name` is the older word."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
