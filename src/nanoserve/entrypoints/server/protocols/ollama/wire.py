"""Bodies and answers of Ollama's routes: every field that its clients send, honoured, refused by name, or without effect here.

Durations are in nanoseconds; a field of an answer that is unset is left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from nanoserve.entrypoints.server.http.errors import Problem
from nanoserve.entrypoints.server.http.field_support import (
    EARLIER,
    FIELDS,
    harmless,
    only,
    refusing,
    sampling_body,
    taking,
)
from nanoserve.entrypoints.server.http.logprobs import ChosenToken
from nanoserve.ports.sampling import Api

_COMPUTING: Final = harmless("it says how another server computes")
_NO_MIROSTAT: Final = harmless("it is part of `mirostat`, which can only be off")


@sampling_body(Api.OLLAMA)
@taking(
    "num_keep num_batch num_gpu main_gpu num_thread numa low_vram f16_kv logits_all use_mmap use_mlock",
    _COMPUTING,
)
@taking("mirostat_tau mirostat_eta", _NO_MIROSTAT)
class Options(Struct, kw_only=True):
    """How to sample."""

    num_ctx: int | None = None
    num_predict: int | None = None
    seed: int | None = None
    repeat_last_n: Annotated[int | None, only(-1, 0)] = None


class _Asked(Struct, kw_only=True):
    """The fields that both ways of asking share."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Annotated[str | float | None, FIELDS["keep_alive"]] = None
    think: bool | str | None = None
    speculate: bool | None = None
    format: str | dict[str, Any] | None = None


@refusing
class GenerateBody(_Asked, kw_only=True):
    """The body of `/api/generate`; without a prompt it asks to load the model."""

    prompt: str = ""
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class EarlierFunction(Struct, kw_only=True):
    """A function that was called."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    index: Annotated[int | None, EARLIER] = None
    description: Annotated[str | None, EARLIER] = None


class EarlierCall(Struct, kw_only=True):
    """One call of an earlier answer."""

    function: EarlierFunction
    id: str | None = None
    type: Annotated[str | None, EARLIER] = None


class OllamaTurn(Struct, kw_only=True):
    """One turn of a conversation; those of the role tool have the result of the tool `tool_name`."""

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


class PullBody(ShowBody):
    """The body of `/api/pull`."""

    insecure: Annotated[bool | None, harmless("nothing is downloaded")] = None
    stream: bool | None = None


class OllamaError(Struct):
    """The body of every answer that is not a success, and the last line of a stream that broke."""

    error: str

    @classmethod
    def of(cls, problem: Problem) -> OllamaError:
        """The message alone."""
        return cls(problem.message)


class OllamaAnswer(Struct, kw_only=True):
    """One line of a stream, or the whole answer; the fields behind `done` come when it is true."""

    model: str
    created_at: datetime
    logprobs: list[ChosenToken] | UnsetType = UNSET
    done: bool = False
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Generated(OllamaAnswer, kw_only=True):
    """An answer of `/api/generate`; `context` holds the token ids of prompt and answer, to continue from."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaFunction(Struct, kw_only=True):
    """A called function; arguments that are no object are a text in `arguments` of one."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Struct, kw_only=True):
    """One call of a tool, whole."""

    id: str
    function: OllamaFunction


class OllamaMessage(Struct, kw_only=True):
    """The model's turn, or more of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class Chatted(OllamaAnswer, kw_only=True):
    """An answer of `/api/chat`."""

    message: OllamaMessage


class Embedded(Struct):
    """The vectors of texts, nanoseconds, and tokens read."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedded(Struct):
    """The vector of a text."""

    embedding: list[float]


class Details(Struct, kw_only=True):
    """The facts about a model's files; empty if a server does not know them."""

    parent_model: str = ""
    format: Literal["safetensors"] = "safetensors"
    family: str = ""
    families: list[str] = field(default_factory=list)
    parameter_size: str = ""
    quantization_level: str


class NamedModel(Struct, kw_only=True):
    """One name under which the model is served; sizes are not known here. The last fields are those of a list of loaded ones."""

    name: str
    model: str
    digest: str
    details: Details
    modified_at: datetime
    size: int = 0
    size_vram: int | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(Struct):
    """The names that requests may use."""

    models: list[NamedModel]


class ShownModel(Struct, kw_only=True):
    """A model in detail."""

    modelfile: str = ""
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime


class OllamaVersion(Struct):
    """The version of Ollama whose API this is."""

    version: str
