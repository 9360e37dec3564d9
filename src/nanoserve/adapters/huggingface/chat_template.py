"""Conversations to prompts, with the Jinja template of the model folder (`ports.ChatTemplate`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2.exceptions import TemplateError

from nanoserve.adapters.huggingface.control_tokens import (
    ControlTokens,
    Marks,
    choose_marks,
    map_texts,
    texts_of,
)
from nanoserve.adapters.huggingface.messages import plain_messages, plain_options, plain_tools
from nanoserve.adapters.huggingface.template_process import (
    CPU_SECONDS,
    TemplateFailedError,
    TemplateStoppedError,
    template_process,
)
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.driven import NO_OPTIONS, Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool

_CUT: Final = "CONTINUED-FROM-HERE "
"""Behind the message that is continued. The blank at its end shows whether the template trims messages."""


class HFChatTemplate:
    """Renders in a sandbox and tokenizes so that a conversation cannot contain control tokens.

    Control tokens are the tokenizer's special tokens and those of its added tokens that the template's source
    names. Without any inside the conversation the ids are those of `apply_chat_template`. One that is written
    there is encoded as text, and cuts the text around it into separately encoded pieces. A template that builds
    control tokens out of a message's parts, such as `'<|' + role + '|>'`, is taken at its word.
    The template's text is the whole prompt: no further beginning-of-sequence token is added.
    """

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def variables(self) -> frozenset[str]:
        """The template's inputs besides the conversation, such as `enable_thinking`; none where there is no template."""
        sources = filter(None, (self._tokenizer.chat_template, self._tokenizer.tool_template))
        return frozenset().union(*map(template_process().variables, sources))

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> list[int]:
        """Messages to prompt token ids.

        To continue the final message, it is rendered with a word of our own behind it, and what is rendered from that word on
        is left out, as transformers does.
        Raises `BadValueError` for content other than text, for options that are not the template's to have, for
        whatever the template refuses, and where the folder has no template.
        """
        given = {
            **plain_options(options, self._tokenizer.named_tokens),
            "messages": plain_messages(messages),
            "tools": plain_tools(tools),
        }
        rendered = self._render(given, add_generation_prompt, continue_final_message)
        texts = texts_of(given)
        if any(self._control_tokens.suspicious(text) for text in texts):
            marks = choose_marks(texts)
            marked = map_texts(given, lambda text: self._control_tokens.mark(text, marks))
            pieces = self._pieces(self._render(marked, add_generation_prompt, continue_final_message), marks)
            own = [
                token for piece, plain in pieces if not plain for token in self._control_tokens.find(piece)
            ]
            if own != self._control_tokens.find(rendered):
                return self._encode_pieces(pieces)
        return self._tokenizer.encode(rendered, add_special_tokens=False)

    def _source(self, tools: Any) -> str:
        """The template named `tool_use` where there are tools, if the folder has one, as in transformers; else the default."""
        source = self._tokenizer.tool_template if tools else None
        source = source or self._tokenizer.chat_template
        if source is None:
            raise BadValueError(
                "messages",
                f"the model in {self._tokenizer.folder} has no chat template (or several and no default); send a "
                "plain prompt instead, or put a chat_template.jinja into the folder",
            )
        return source

    @functools.cached_property
    def _control_tokens(self) -> ControlTokens:
        added = self._tokenizer.added_tokens.values()
        sources = "".join(filter(None, (self._tokenizer.chat_template, self._tokenizer.tool_template)))
        return ControlTokens(
            token.content
            for token in added
            if token.special or (token.content in sources and not token.content.isspace())
        )

    def _render(
        self, given: Mapping[str, Any], add_generation_prompt: bool, continue_final_message: bool
    ) -> str:
        if continue_final_message:
            *before, last = given["messages"]
            given = {**given, "messages": [*before, {**last, "content": last["content"] + _CUT}]}
        rendered = self._filled(
            {
                **given,
                "documents": None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
                **self._tokenizer.named_tokens,
            }
        )
        return _before_cut(rendered, given["messages"][-1]["content"]) if continue_final_message else rendered

    def _filled(self, values: Mapping[str, Any]) -> str:
        source = self._source(values["tools"])
        try:
            return template_process().render(source, values)
        except TemplateError as error:  # what it raises on purpose is written for the one who asked
            said = f"refused them: {error}"
        except TemplateFailedError:  # its own words may show its insides
            said = "cannot render them"
        except TemplateStoppedError:
            said = f"was stopped: it computed for {CPU_SECONDS} seconds or took too much memory"
        raise BadValueError("messages", f"the model's chat template {said}")

    def _pieces(self, rendered: str, marks: Marks) -> list[tuple[str, bool]]:
        escaped = [f"\\u{ord(mark):04x}" for mark in (marks.start, marks.end, marks.edge)]
        if any(mark in rendered for mark in escaped):
            raise BadValueError("messages", "contain a control token that the model's template would escape")
        return self._control_tokens.split(rendered, marks)

    def _encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        ids: list[int] = []
        for place, (piece, plain) in enumerate(pieces):
            encode = self._tokenizer.encode_without_added_tokens if plain else self._encode_text
            ids += _encode_inside(encode, piece) if place else encode(piece)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _before_cut(rendered: str, content: str) -> str:
    """A prompt up to the end of its last message; blanks at the end are kept where the template keeps them."""
    said = content.removesuffix(_CUT)
    before, cut, after = rendered.rpartition(_CUT.rstrip())
    if not cut or said.strip() not in before:
        message = "end with a turn that the model's chat template does not write as it is, so it cannot be continued"
        raise BadValueError("messages", message)
    return before if after.startswith(" ") else before.rstrip()


def _encode_inside(encode: Any, piece: str) -> list[int]:
    """Encode a piece as the middle of a text: behind a line break, so that no blank is put before it."""
    line_break = encode("\n")
    ids: list[int] = encode("\n" + piece)
    if ids[: len(line_break)] == line_break:
        return ids[len(line_break) :]
    return list(encode(piece))
