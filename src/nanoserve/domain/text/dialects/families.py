"""The table of dialects, and how a model's files choose one of them.

Sources are the families' chat templates and the pages that publish their formats. A chat template that holds all of a
dialect's `signs` is of that dialect; the first one that fits is taken, so that a dialect stands before those whose signs are
a part of its own. The model's type decides only where no template does.
"""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.domain.text.dialects.dialect import (
    CallIds,
    Calls,
    Channels,
    Dialect,
    EarlierArguments,
    JsonArguments,
    KeyedCall,
    NamedCall,
    PythonicCall,
    Region,
    XmlArguments,
)

THINK: Final = Region("<think>", "</think>")

_HERMES: Final = Calls(form=KeyedCall(), open="<tool_call>", close="</tool_call>", pad="\n", between="\n")
_DEEPSEEK_SECTION: Final = Region("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK: Final = Calls(
    form=NamedCall(
        kind="function",
        before="<｜tool▁sep｜>",
        after="\n```json\n",
        arguments=JsonArguments(behind="\n```"),
    ),
    section=_DEEPSEEK_SECTION,
    loose=True,
    open="<｜tool▁call▁begin｜>",
    close="<｜tool▁call▁end｜>",
    between="\n",
)

_PHI: Final = Dialect(
    name="phi-4-mini", calls=Calls(form=KeyedCall(listed=True), open="functools[", between=", ")
)


@attrs.frozen
class Family:
    """A dialect and what a model's files show of it.

    Attributes:
        signs: texts that the chat template of such a model holds, all of them.
        model_types: of configs of models that never speak otherwise, for folders whose template says nothing.
    """

    dialect: Dialect
    signs: tuple[str, ...]
    model_types: tuple[str, ...] = ()


FAMILIES: Final = (
    Family(Dialect(name="gpt-oss", channels=Channels()), ("<|channel|>", "<|message|>"), ("gpt_oss",)),
    Family(
        Dialect(
            name="qwen3-coder",
            reasoning=THINK,
            calls=Calls(
                form=NamedCall(
                    after=">",
                    arguments=XmlArguments(
                        key_open="<parameter=",
                        key_close=">",
                        value_close="</parameter>",
                        pad="\n",
                        between="\n",
                    ),
                ),
                section=Region("<tool_call>", "</tool_call>"),
                one_each=True,
                loose=True,
                open="<function=",
                close="</function>",
                pad="\n",
                between="\n",
            ),
        ),
        ("<tool_call>", "<function=", "<parameter="),
    ),
    Family(
        Dialect(
            name="glm-4.5",
            reasoning=THINK,
            calls=Calls(
                form=NamedCall(
                    after="\n",
                    arguments=XmlArguments(
                        key_open="<arg_key>",
                        key_close="</arg_key>",
                        value_open="<arg_value>",
                        value_close="</arg_value>",
                        between="\n",
                    ),
                ),
                open="<tool_call>",
                close="</tool_call>",
                between="\n",
            ),
        ),
        ("<tool_call>", "<arg_key>", "<arg_value>"),
        ("glm4_moe",),
    ),
    Family(
        Dialect(
            name="minimax-m2",
            reasoning=THINK,
            calls=Calls(
                form=NamedCall(
                    after='">',
                    arguments=XmlArguments(
                        key_open='<parameter name="', key_close='">', value_close="</parameter>", between="\n"
                    ),
                ),
                section=Region("<minimax:tool_call>", "</minimax:tool_call>"),
                open='<invoke name="',
                close="</invoke>",
                pad="\n",
                between="\n",
            ),
        ),
        ("<minimax:tool_call>", "<invoke name="),
        ("minimax_m2",),
    ),
    Family(
        Dialect(
            name="kimi-k2",
            reasoning=THINK,
            calls=Calls(
                form=NamedCall(after="<|tool_call_argument_begin|>", qualified=True),
                section=Region("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
                loose=True,
                open="<|tool_call_begin|>",
                close="<|tool_call_end|>",
            ),
            earlier_arguments=EarlierArguments.TEXT,
            call_ids=CallIds.QUALIFIED,
        ),
        ("<|im_middle|>", "<|im_assistant|>"),
        ("kimi_k2",),
    ),
    Family(
        Dialect(
            name="deepseek-v3",
            reasoning=THINK,
            calls=_DEEPSEEK,
            earlier_arguments=EarlierArguments.TEXT,
        ),
        ("<｜tool▁call▁begin｜>", "```json"),
    ),
    Family(
        Dialect(
            name="deepseek-v3.1",
            reasoning=THINK,
            calls=attrs.evolve(_DEEPSEEK, form=NamedCall(after="<｜tool▁sep｜>"), between=""),
            earlier_arguments=EarlierArguments.TEXT,
        ),
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        ("deepseek_v3",),
    ),
    Family(
        Dialect(
            name="mistral-v11",
            reasoning=Region("[THINK]", "[/THINK]"),
            calls=Calls(form=NamedCall(after="[ARGS]", id_mark="[CALL_ID]"), open="[TOOL_CALLS]"),
            call_ids=CallIds.NINE,
        ),
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    Family(
        Dialect(
            name="mistral",
            calls=Calls(form=KeyedCall(listed=True), open="[TOOL_CALLS]", between=", "),
            call_ids=CallIds.NINE,
        ),
        ("[TOOL_CALLS]",),
    ),
    Family(
        Dialect(
            name="granite",
            calls=Calls(
                form=KeyedCall(listed=True), open="<|tool_call|>", also=("<tool_call>",), between=", "
            ),
        ),
        ("<|start_of_role|>", "<|tool_call|>"),
    ),
    Family(_PHI, ("functools[",)),
    Family(_PHI, ("<|tool|>", "<|/tool|>")),
    Family(
        Dialect(
            name="llama-pythonic",
            calls=Calls(
                form=PythonicCall(), open="<|python_start|>", close="<|python_end|>", bare=True, between=", "
            ),
        ),
        ("func_name1(",),
        ("llama4",),
    ),
    Family(
        Dialect(
            name="llama-json",
            calls=Calls(
                form=KeyedCall(keys=("name", "parameters")),
                open="<|python_tag|>",
                bare=True,
                between="; ",
            ),
        ),
        ('{"name": function name, "parameters":',),
    ),
    Family(
        Dialect(name="qwen3", reasoning=THINK, calls=_HERMES),
        ("<tool_call>", "<think>"),
        ("qwen3", "qwen3_moe"),
    ),
    Family(Dialect(name="hermes", calls=_HERMES), ("<tool_call>",), ("qwen2",)),
    Family(Dialect(name="deepseek-r1", reasoning=THINK), ("<think>", "</think>")),
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
