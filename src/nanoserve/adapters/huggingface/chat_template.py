"""Conversations to prompts, with the Jinja template of the model folder (`ports.ChatTemplate`)."""

from __future__ import annotations

import functools
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from jinja2.exceptions import TemplateError

from nanoserve.adapters.huggingface.template_process import (
    CPU_SECONDS,
    TemplateFailedError,
    TemplateStoppedError,
    template_process,
)
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer, check_unicode
from nanoserve.ports.driven import NO_OPTIONS, Check, Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool

_CUT: Final = "CONTINUED-FROM-HERE "
"""Behind the message that is continued. The blank at its end shows whether the template trims messages."""
OWN_VARIABLES: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
REASONING_NAMES: Final = ("reasoning_content", "thinking", "reasoning")
NONCHARACTERS: Final = [chr(code) for code in range(0xFDD0, 0xFDF0)]


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
        """The template's inputs besides the conversation, such as `enable_thinking`; none if there is no template."""
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
        check: Check = None,
    ) -> list[int]:
        """Messages to prompt token ids.

        To continue the final message, it is rendered with a word of our own behind it, and what is rendered from that word on is left out, as transformers
        does. Raises `BadValueError` for content other than text, for options that are not the template's to have, for whatever the template refuses, and where
        the folder has no template.
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
            wrapped = self._render(marked, add_generation_prompt, continue_final_message)
            escaped = [f"\\u{ord(mark):04x}" for mark in (marks.start, marks.end, marks.edge)]
            if any(mark in wrapped for mark in escaped):
                raise BadValueError(
                    "messages", "contain a control token that the model's template would escape"
                )
            # One by one: to free a list of all that may be in a text keeps the interpreter's lock for long.
            find, split = self._control_tokens.find, self._control_tokens.split
            own = (each for piece, plain in split(wrapped, marks) if not plain for each in find(piece))
            if any(ours != there for ours, there in itertools.zip_longest(own, find(rendered))):
                return self._encode_pieces(split(wrapped, marks), check)
        return self._tokenizer.encode(rendered, add_special_tokens=False, check=check)

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
        is_next = add_generation_prompt and not continue_final_message
        own = {"documents": None, "add_generation_prompt": is_next, **self._tokenizer.named_tokens}
        rendered = self._filled({**given, **own})
        return _before_cut(rendered, given["messages"][-1]["content"]) if continue_final_message else rendered

    def _filled(self, values: Mapping[str, Any]) -> str:
        """By the template named `tool_use` where there are tools, if the folder has one, as in transformers; else by the default."""
        source = self._tokenizer.tool_template if values["tools"] else None
        source = source or self._tokenizer.chat_template
        if source is None:
            raise BadValueError(
                "messages",
                f"the model in {self._tokenizer.folder} has no chat template (or several and no default); send a "
                "plain prompt instead, or put a chat_template.jinja into the folder",
            )
        try:
            return template_process().render(source, values)
        except TemplateError as error:  # what it raises on purpose is written for the one who asked
            said = f"refused them: {error}"
        except TemplateFailedError:  # its own words may show its insides
            said = "cannot render them"
        except TemplateStoppedError:
            said = f"was stopped: it computed for {CPU_SECONDS} seconds or took too much memory"
        raise BadValueError("messages", f"the model's chat template {said}")

    def _encode_pieces(self, pieces: Iterable[tuple[str, bool]], check: Check) -> list[int]:
        encode_plain = functools.cache(self._tokenizer.encode_without_added_tokens)  # control tokens are few
        encode_text = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        ids: list[int] = []
        for place, (piece, plain) in enumerate(pieces):
            encode = encode_plain if plain else encode_text
            ids += _encode_inside(encode, piece) if place else encode(piece)
            if check:
                check(len(ids))
        return ids


def _before_cut(rendered: str, content: str) -> str:
    """A prompt up to the end of its last message; blanks at the end are kept where the template keeps them."""
    said = content.removesuffix(_CUT)
    before, cut, after = rendered.rpartition(_CUT.rstrip())
    if not cut or said.strip() not in before:
        message = "end with a turn that the model's chat template changes, so it cannot be continued"
        raise BadValueError("messages", message)
    return before if after.startswith(" ") else before.rstrip()


def _encode_inside(encode: Any, piece: str) -> list[int]:
    """Encode a piece as the middle of a text: behind a line break, so that no blank is put before it."""
    line_break = encode("\n")
    ids: list[int] = encode("\n" + piece)
    is_kept = ids[: len(line_break)] == line_break
    return ids[len(line_break) :] if is_kept else list(encode(piece))


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as dicts whose content is text.

    Text parts are joined with line breaks, as vLLM does for templates that take text; no content is "" and other keys that are None are left out. As in
    transformers, a message's reasoning goes by every name that templates read. Raises `BadValueError`, naming the message, for anything that is not text.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise BadValueError("messages", "must be a list with at least one message")
    try:
        return [_plain_message(message, f"messages[{place}]") for place, message in enumerate(messages)]
    except RecursionError:
        raise BadValueError("messages", "are nested too deeply") from None


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Tools in the form that templates take, None if there are none. Raises `BadValueError` as `plain_messages` does."""
    plain = [tool.as_message() for tool in tools]
    for place, tool in enumerate(plain):
        _check_values(tool, f"tools[{place}]")
    return plain or None


def plain_options(options: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Variables for the template besides its own and the `taken` ones. Raises `BadValueError` for one of those."""
    for name in options:
        if name in OWN_VARIABLES or name in taken:
            raise BadValueError("chat_template_kwargs", f"cannot set {name!r}, which clients cannot choose")
    _check_values(dict(options), "chat_template_kwargs")
    return dict(options)


def _plain_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadValueError(where, f"must be an object with role and content, got {message!r}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadValueError(f"{where}.role", f"must be a non-empty text, got {role!r}")
    kept = {key: value for key, value in message.items() if value is not None}
    plain = {**kept, "content": _text(message.get("content"), f"{where}.content")}
    _check_values(plain, where)
    reasoning = next((plain[name] for name in REASONING_NAMES if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise BadValueError(where, f"must be text, null or a list of text parts, got {content!r}")
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise BadValueError(where, f"has type {kind!r}, but this model takes text parts only")
    text = part.get("text")
    if not isinstance(text, str):
        raise BadValueError(f"{where}.text", f"must be text, got {text!r}")
    return text


def _check_values(value: Any, where: str) -> None:
    """Check that a template only gets JSON values and valid Unicode."""
    if isinstance(value, str):
        check_unicode(value, where)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, where)
            _check_values(item, f"{where}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_values(item, f"{where}[{place}]")
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise BadValueError(where, f"must be a JSON value, got {type(value).__name__}")


@attrs.frozen
class Marks:
    """Three characters: around a control token (`start`, `end`), and where text must not join (`edge`)."""

    start: str
    end: str
    edge: str


def choose_marks(texts: Collection[str]) -> Marks:
    """Marks that occur in none of the texts. Raises `BadValueError` if they leave no three."""
    free = [each for each in NONCHARACTERS if not any(each in text for text in texts)]
    if len(free) < 3:
        raise BadValueError("messages", "contain almost all of the noncharacters U+FDD0 to U+FDEF")
    return Marks(*free[:3])


class ControlTokens:
    """The tokens, by their text, that only the template may write.

    In text the `<|im_end|>` that a user typed looks like the template's own. So the user's are wrapped into marks before
    rendering: noncharacters (U+FDD0 .. U+FDEF) that occur nowhere in the conversation, hence cannot be forged. The template
    still sees the whole content, and can trim and search it. The approach is that of transformers' `sanitize_control_tokens`.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted(set(tokens), key=len, reverse=True)
        self._anywhere = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._heads = tuple({token[:cut] for token in longest_first for cut in range(1, len(token))})
        self._tails = tuple({token[cut:] for token in longest_first for cut in range(1, len(token))})

    def suspicious(self, text: str) -> bool:
        """True if text contains a control token, or could become part of one beside other text."""
        core = text.strip()
        return bool(core.endswith(self._heads) or core.startswith(self._tails) or self._anywhere.search(text))

    def mark(self, text: str, marks: Marks) -> str:
        """Text with its control tokens wrapped, and with an edge where a part of one might be completed."""
        core = text.strip()
        start = text.index(core)
        left = marks.edge if core.startswith(self._tails) else ""
        right = marks.edge if core.endswith(self._heads) else ""
        wrapped, end = io.StringIO(), 0  # `sub` makes one list of all there is, and keeps the lock to free it
        for found in self._anywhere.finditer(core):
            wrapped.write(f"{core[end : found.start()]}{marks.start}{found[0]}{marks.end}")
            end = found.end()
        return text[:start] + left + wrapped.getvalue() + core[end:] + right + text[start + len(core) :]

    def find(self, text: str) -> Iterator[str]:
        """The control tokens of a text in order."""
        return (found[0] for found in self._anywhere.finditer(text))  # `findall` keeps the interpreter's lock

    def split(self, rendered: str, marks: Marks) -> Iterator[tuple[str, bool]]:
        """A rendered text without its marks, as pieces; True for a control token that is to be plain text."""
        wrapped = f"{marks.start}({self._anywhere.pattern}){marks.end}"
        end = 0
        for found in re.finditer(f"{wrapped}|[{marks.start}{marks.end}{marks.edge}]", rendered):
            if end < found.start():
                yield rendered[end : found.start()], False
            if found[1]:
                yield found[1], True
            end = found.end()
        if end < len(rendered):
            yield rendered[end:], False


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested dicts and lists with `change` applied to every text: to values, and to keys that are no plain names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key if key.isidentifier() else change(key): map_texts(item, change) for key, item in value.items()
        }
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return value


def texts_of(value: Any) -> list[str]:
    """Every text that `map_texts` changes."""
    texts: dict[int, str] = {}
    map_texts(value, lambda text: texts.setdefault(len(texts), text))
    return list(texts.values())
