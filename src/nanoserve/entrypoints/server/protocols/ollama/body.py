"""The bodies of Ollama's routes: every field that its clients send, honoured, refused by name, or without effect here."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Struct, field

from nanoserve.entrypoints.server.http.field_support import FIELDS, harmless, only, refusing, sampling_body
from nanoserve.ports.sampling import Api

_COMPUTING: Final = harmless("it says how another server computes")
_NO_MIROSTAT: Final = harmless("it is part of `mirostat`, which can only be off")
_EARLIER: Final = harmless("of an earlier answer, and says nothing that the model could be told")


@sampling_body(Api.OLLAMA)
class Options(Struct, kw_only=True):
    """How to sample."""

    num_ctx: int | None = None
    num_predict: int | None = None
    seed: int | None = None

    mirostat_tau: Annotated[Any, _NO_MIROSTAT] = None
    mirostat_eta: Annotated[Any, _NO_MIROSTAT] = None
    num_keep: Annotated[Any, _COMPUTING] = None
    num_batch: Annotated[Any, _COMPUTING] = None
    num_gpu: Annotated[Any, _COMPUTING] = None
    main_gpu: Annotated[Any, _COMPUTING] = None
    num_thread: Annotated[Any, _COMPUTING] = None
    numa: Annotated[Any, _COMPUTING] = None
    low_vram: Annotated[Any, _COMPUTING] = None
    f16_kv: Annotated[Any, _COMPUTING] = None
    logits_all: Annotated[Any, _COMPUTING] = None
    use_mmap: Annotated[Any, _COMPUTING] = None
    use_mlock: Annotated[Any, _COMPUTING] = None


class _Asked(Struct, kw_only=True):
    """What both ways of asking have."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Annotated[str | float | None, FIELDS["keep_alive"]] = None
    think: bool | str | None = None
    format: str | dict[str, Any] | None = None


@refusing
class GenerateBody(_Asked, kw_only=True):
    """The body of `/api/generate`; without a prompt it asks to load the model."""

    prompt: str = ""
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class EarlierFunction(Struct, kw_only=True):
    """What was called."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    index: Annotated[int | None, _EARLIER] = None
    description: Annotated[str | None, _EARLIER] = None


class EarlierCall(Struct, kw_only=True):
    """One call of an earlier answer."""

    function: EarlierFunction
    id: str | None = None
    type: Annotated[str | None, _EARLIER] = None


class OllamaTurn(Struct, kw_only=True):
    """One turn of a conversation; those of the role tool say what the tool `tool_name` said."""

    role: str
    content: str = ""
    tool_name: str | None = None
    tool_call_id: str | None = None
    thinking: str | None = None
    images: Annotated[Any, only([])] = None
    tool_calls: list[EarlierCall] | None = None


@refusing
class OllamaChatBody(_Asked, kw_only=True):
    """The body of `/api/chat`; without messages it asks to load the model."""

    messages: list[OllamaTurn] | None = None
    tools: list[dict[str, Any]] | None = None


_UNSAMPLED: Final = harmless("nothing is sampled")


@refusing
class EmbedBody(Struct, kw_only=True):
    """The body of `/api/embed`."""

    model: str
    input: str | list[str] = field(default_factory=list)
    dimensions: int | None = None
    options: Annotated[dict[str, Any] | None, _UNSAMPLED] = None


@refusing
class EmbeddingsBody(Struct, kw_only=True):
    """The body of `/api/embeddings`, the older form."""

    model: str
    prompt: str
    options: Annotated[dict[str, Any] | None, _UNSAMPLED] = None


class ShowBody(Struct, kw_only=True):
    """The body of `/api/show`; `name` is the older word."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
