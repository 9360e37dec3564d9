"""Fields that stand for features which are not here: refused by name under every protocol, never ignored.

`UNSUPPORTED` has those of all protocols, because clients send the fields of one to another. A body that supports one of
them declares it. Of structs inside a body each field says so itself: `effort: Annotated[str | None, only("none")] = None`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

_HARMLESS: Final = "harmless"
BodyT = TypeVar("BodyT", bound=msgspec.Struct)
UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    # Tools
    "tools": ([],),
    "tool_choice": ("none", "auto", {"type": "none"}, {"type": "auto"}),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "mcp_servers": ([],),
    "web_search_options": (),
    # Answers that follow a grammar
    "response_format": ({"type": "text"},),
    "format": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "output_config": ({},),
    "output_format": (),
    # Prompts that are no text, or are made otherwise
    "images": ([],),
    "image": ({},),
    "audio": (),
    "modalities": (["text"],),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "suffix": ("",),
    "documents": ([],),
    "system": ("",),
    "instructions": ("",),
    "template": ("",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_special_tokens": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "truncate": (False,),
    "truncate_prompt_tokens": (),
    "shift": (False,),
    "context_management": ([],),
    # Reasoning
    "reasoning_effort": ("none",),
    "thinking_token_budget": (),
    "include_reasoning": (True, False),
    "think": (False,),
    "thinking": ({"type": "disabled"},),
    "verbosity": ("medium",),
    # Sampling
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "logits_processors": ([],),
    "mirostat": (0,),
    "typical_p": (1.0,),
    "tfs_z": (1.0,),
    "repeat_last_n": (-1,),
    "penalize_newline": (True,),
    "vocab_only": (False,),
    "prediction": (),
    # What an answer holds
    "echo": (False,),
    "top_logprobs": (0,),
    "return_token_ids": (False,),
    "return_timings": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    # Services around the model
    "request_id": (),
    "service_tier": ("auto", "default", "standard_only"),
    "speed": ("standard",),
    "store": (False,),
    "metadata": ({},),
    "conversation": (),
    "container": (),
    "diagnostics": (),
    "inference_geo": (),
    "moderation": (),
    "access_programs": ({},),
    "background": (False,),
    "background_options": ({},),
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": (),
    "kv_transfer_params": ({},),
}
"""By the name of a field, the values that ask for nothing; null is one of every field."""


def only(*harmless: Any) -> msgspec.Meta:
    """The annotation of a field that may hold nothing but null and these values, which change nothing."""
    allowed = " or ".join(shown(each) for each in harmless)
    description = f"Not supported; it can be {allowed}." if harmless else "Not supported; leave it out."
    return msgspec.Meta(description=description, extra={_HARMLESS: harmless})


def completed(body: type[BodyT], fields: Mapping[str, Any]) -> type[BodyT]:
    """The body with those of the fields, types by name, that it does not declare, and those that are not supported."""
    unsupported = {name: Annotated[Any, only(*harmless)] for name, harmless in UNSUPPORTED.items()}
    wanted = {**unsupported, **fields}
    missing = [(name, kind, None) for name, kind in wanted.items() if name not in body.__struct_fields__]
    whole: Any = msgspec.defstruct(
        body.__name__, missing, bases=(body,), module=body.__module__, kw_only=True
    )
    whole.__doc__ = body.__doc__
    return cast("type[BodyT]", whole)


def refusing(body: type[BodyT]) -> type[BodyT]:
    """The decorator of a body without sampling parameters."""
    return completed(body, {})


def refuse_unsupported(body: msgspec.Struct, path: str = "") -> None:
    """Raise `BadValueError` for the first field, of structs inside too, that asks for what this server cannot do."""
    for name, harmless in _declared(type(body)).items():
        value = getattr(body, name)
        if isinstance(value, msgspec.Struct):
            refuse_unsupported(value, f"{path}{name}.")
        elif harmless is not None and value is not None and not any(_same(value, each) for each in harmless):
            allowed = " or ".join(shown(each) for each in harmless)
            remedy = f"it can be {allowed}, or be left out" if harmless else "leave it out"
            raise BadValueError(
                f"{path}{name}", f"is not supported by this server (got {shown(value)}); {remedy}"
            )


def renamed(error: BadValueError, parameter: str) -> BadValueError:
    """The same error about a parameter under the name that the client knows."""
    return BadValueError(parameter, str(error).removeprefix(f"{error.parameter}: "))


@functools.cache
def _declared(body: type[msgspec.Struct]) -> dict[str, tuple[Any, ...] | None]:
    """The harmless values of each field that is not supported, and None for each that may hold a struct."""
    found: dict[str, tuple[Any, ...] | None] = {}
    for name, annotation in typing.get_type_hints(body, include_extras=True).items():
        parts = list(_parts(annotation))
        extras = [each.extra for each in parts if isinstance(each, msgspec.Meta) and each.extra]
        if extras:
            found[name] = extras[0][_HARMLESS]
        elif any(isinstance(each, type) and issubclass(each, msgspec.Struct) for each in parts):
            found[name] = None
    return found


def _parts(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    yield annotation
    for each in typing.get_args(annotation):
        yield from _parts(each)


def _same(value: Any, harmless: Any) -> bool:
    """Equal, where JSON's 1 is not true."""
    return bool(isinstance(value, bool) == isinstance(harmless, bool) and value == harmless)
