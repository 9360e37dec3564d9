"""What Ollama's routes answer, field by field; durations are in nanoseconds, and a field that is unset is left out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from nanoserve.entrypoints.server.http.errors import Problem
from nanoserve.entrypoints.server.http.logprobs import ChosenToken


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
    """Of `/api/generate`; `context` holds the token ids of prompt and answer, to go on from."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaFunction(Struct, kw_only=True):
    """What is called; arguments that are no object stand as a text in `arguments` of one."""

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
    """Of `/api/chat`."""

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
    """What is known of a model's files; empty where a server does not know it."""

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
