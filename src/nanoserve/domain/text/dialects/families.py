"""The table of dialects, and the choice of one by a model's files.

Sources are the families' chat templates and the pages that publish their formats. A chat template that holds all of a
dialect's `signs` is of that dialect; the first one that fits is taken, so that a dialect stands before those whose signs are
a part of its own. The model's type decides only if no template does.
"""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

from typing import Any, Final

import attrs

from nanoserve.domain.text.dialects.dialect import (
    Calls,
    Channels,
    Dialect,
    JsonArguments,
    KeyedCall,
    NamedCall,
    PythonicCall,
    Region,
    XmlArguments,
)

THINK: Final = Region("<think>", "</think>")

_HERMES: Final = Calls(form=KeyedCall(), open="<tool_call>", close="</tool_call>", pad="\n", between="\n")
_DEEPSEEK: Final = Calls(
    form=NamedCall("\n```json\n", JsonArguments(behind="\n```"), kind="function", before="<｜tool▁sep｜>"),
    section=Region("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    loose=True,
    open="<｜tool▁call▁begin｜>",
    close="<｜tool▁call▁end｜>",
    between="\n",
)
_PHI: Final = Calls(form=KeyedCall(listed=True), open="functools[", between=", ")


@attrs.frozen
class Family:
    """A dialect and its signs in a model's files.

    Attributes:
        signs: texts that the chat template of such a model holds, all of them.
        model_types: of configs of models that never speak otherwise, for folders whose template says nothing.
    """

    dialect: Dialect
    signs: tuple[str, ...]
    model_types: tuple[str, ...] = ()


def _family(name: str, signs: tuple[str, ...], *model_types: str, **said: Any) -> Family:
    return Family(Dialect(name=name, **said), signs, model_types)


FAMILIES: Final = (
    _family("gpt-oss", ("<|channel|>", "<|message|>"), "gpt_oss", channels=Channels()),
    _family(
        "qwen3-coder",
        ("<tool_call>", "<function=", "<parameter="),
        reasoning=THINK,
        calls=Calls(
            form=NamedCall(">", XmlArguments("<parameter=", ">", "</parameter>", pad="\n", between="\n")),
            section=Region("<tool_call>", "</tool_call>"),
            one_each=True,
            loose=True,
            open="<function=",
            close="</function>",
            pad="\n",
            between="\n",
        ),
    ),
    _family(
        "glm-4.5",
        ("<tool_call>", "<arg_key>", "<arg_value>"),
        "glm4_moe",
        reasoning=THINK,
        calls=Calls(
            form=NamedCall(
                "\n", XmlArguments("<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>", between="\n")
            ),
            open="<tool_call>",
            close="</tool_call>",
            between="\n",
        ),
    ),
    _family(
        "minimax-m2",
        ("<minimax:tool_call>", "<invoke name="),
        "minimax_m2",
        reasoning=THINK,
        calls=Calls(
            form=NamedCall('">', XmlArguments('<parameter name="', '">', "</parameter>", between="\n")),
            section=Region("<minimax:tool_call>", "</minimax:tool_call>"),
            open='<invoke name="',
            close="</invoke>",
            pad="\n",
            between="\n",
        ),
    ),
    _family(
        "kimi-k2",
        ("<|im_middle|>", "<|im_assistant|>"),
        "kimi_k2",
        reasoning=THINK,
        calls=Calls(
            form=NamedCall("<|tool_call_argument_begin|>", qualified=True),
            section=Region("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            loose=True,
            open="<|tool_call_begin|>",
            close="<|tool_call_end|>",
        ),
        earlier_arguments="text",
        call_ids="qualified",
    ),
    _family(
        "deepseek-v3",
        ("<｜tool▁call▁begin｜>", "```json"),
        reasoning=THINK,
        calls=_DEEPSEEK,
        earlier_arguments="text",
    ),
    _family(
        "deepseek-v3.1",
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        "deepseek_v3",
        reasoning=THINK,
        calls=attrs.evolve(_DEEPSEEK, form=NamedCall("<｜tool▁sep｜>"), between=""),
        earlier_arguments="text",
    ),
    _family(
        "mistral-v11",
        ("[TOOL_CALLS]", "[ARGS]"),
        reasoning=Region("[THINK]", "[/THINK]"),
        calls=Calls(form=NamedCall("[ARGS]", id_mark="[CALL_ID]"), open="[TOOL_CALLS]"),
        call_ids="nine",
    ),
    _family(
        "mistral",
        ("[TOOL_CALLS]",),
        calls=Calls(form=KeyedCall(listed=True), open="[TOOL_CALLS]", between=", "),
        call_ids="nine",
    ),
    _family(
        "granite",
        ("<|start_of_role|>", "<|tool_call|>"),
        calls=Calls(form=KeyedCall(listed=True), open="<|tool_call|>", also=("<tool_call>",), between=", "),
    ),
    _family("phi-4-mini", ("functools[",), calls=_PHI),
    _family("phi-4-mini", ("<|tool|>", "<|/tool|>"), calls=_PHI),
    _family(
        "llama-pythonic",
        ("func_name1(",),
        "llama4",
        calls=Calls(
            form=PythonicCall(), open="<|python_start|>", close="<|python_end|>", bare=True, between=", "
        ),
    ),
    _family(
        "llama-json",
        ('{"name": function name, "parameters":',),
        calls=Calls(form=KeyedCall(("name", "parameters")), open="<|python_tag|>", bare=True, between="; "),
    ),
    _family("qwen3", ("<tool_call>", "<think>"), "qwen3", "qwen3_moe", reasoning=THINK, calls=_HERMES),
    _family("hermes", ("<tool_call>",), "qwen2", calls=_HERMES),
    _family("deepseek-r1", ("<think>", "</think>"), reasoning=THINK),
)
"""In the order in which templates are compared with them."""

DIALECTS: Final = {family.dialect.name: family.dialect for family in FAMILIES}


def dialect_of(chat_template: str | None, model_type: str | None) -> Dialect | None:
    """The dialect that a chat template writes, else that of the model's type; None for neither."""
    template = chat_template or ""
    for family in FAMILIES:
        if all(sign in template for sign in family.signs):
            return family.dialect
    return next((family.dialect for family in FAMILIES if model_type in family.model_types), None)
