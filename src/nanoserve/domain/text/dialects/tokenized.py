"""A dialect with the tokens of one tokenizer, for entry points."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.domain.text.dialects.dialect import CallIds, Dialect
from nanoserve.domain.text.dialects.families import DIALECTS, dialect_of
from nanoserve.domain.text.dialects.grammar import answer_grammar
from nanoserve.domain.text.dialects.parser import AnswerParser, Parser, TokenText
from nanoserve.domain.text.dialects.response_template import NAME as RESPONSE_TEMPLATE
from nanoserve.domain.text.dialects.response_template import read_response_template
from nanoserve.ports.driven import DialectFacts, Message
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, ConstraintKind, ReasoningLimit
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

PROMPT_TAIL: Final = 16
"""The number of the prompt's last tokens that a parser reads as text."""
NO_DIALECT: Final = "none"
_NINE: Final = 9


@attrs.frozen
class TokenizedDialect:
    """How a model writes answers; immutable, and shared by all its requests.

    Attributes:
        dialect: the family's.
        control_tokens: the texts of the tokens that are marks, and of those that are no part of an answer, by id.
    """

    dialect: Dialect
    control_tokens: Mapping[int, str]

    @property
    def has_reasoning(self) -> bool:
        """True if the marks around reasoning are known."""
        return self.dialect.reasoning is not None or self.dialect.channels is not None

    @property
    def has_calls(self) -> bool:
        """True if the model's format of calls is known."""
        return self.dialect.calls is not None or self.dialect.channels is not None

    @property
    def counts_by_text(self) -> bool:
        """True if only the texts of tokens show which of them are reasoning: its marks are no tokens."""
        region = self.dialect.reasoning
        return region is not None and not {region.open, region.close} <= self._mark_ids.keys()

    @property
    def text_tail(self) -> str:
        """A prompt's tail after which an answer continues within text, without reasoning."""
        channels, region = self.dialect.channels, self.dialect.reasoning
        if channels is not None:
            return f"{channels.start}assistant{channels.channel}final{channels.message}"
        return "" if region is None else f"{region.close}\n"

    def parser(
        self,
        *,
        tools: Sequence[Tool] = (),
        prompt_tail: str = "",
        id_seed: str = "",
        token_text: TokenText | None = None,
    ) -> AnswerParser:
        """A parser of one answer, whose text must have been made with special tokens kept.

        Args:
            tools: those that may be called; without any, no call is looked for.
            prompt_tail: the text of at least the last `PROMPT_TAIL` tokens of the prompt, special ones kept.
            id_seed: what ids of calls are made from: the same seed, the same ids.
            token_text: the text of a token, for dialects that count reasoning by text.
        """
        parser = Parser(
            self.dialect,
            tools=tools,
            tokens=frozenset(self.control_tokens.values()),
            prompt_tail=prompt_tail,
            id_seed=id_seed,
        )
        reasoning = self.dialect.reasoning
        reasons = reasoning is not None and prompt_tail.rstrip().endswith(reasoning.open)
        return AnswerParser(parser, self.control_tokens, reasoning, reasons=reasons, token_text=token_text)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        *,
        schema: Mapping[str, Any] | None = None,
        whitespace: str = BOUNDED_WHITESPACE,
        prompt_tail: str = "",
        budget: int | None = None,
    ) -> Constraint | None:
        """The constraint of an answer whose calls are of those tools and fit their schemas.

        None if nothing is to be kept: without tools that may be called, and where calls are free and no tool is strict.
        With a `schema`, which an answer without calls must fit, there is always something, and with a `budget`, the most tokens of
        reasoning, wherever there may be some.
        """
        allowed = choice.allowed(tuple(tools))
        is_free = (
            choice.mode is CallMode.AUTO and choice.parallel and not any(tool.strict for tool in allowed)
        )
        limit = self._limit(budget, prompt_tail)
        if limit is None and schema is None and (not allowed or is_free or not self.has_calls):
            return None
        after, tail = self._behind_reasoning(prompt_tail) if limit is None else ((), prompt_tail)
        text = answer_grammar(
            self.dialect,
            allowed,
            choice,
            self._mark_ids,
            tail,
            schema=schema,
            whitespace=whitespace,
            limit=limit,
        )
        return Constraint(ConstraintKind.LARK, text, after=after, reasoning=limit)

    def behind_reasoning(
        self, constraint: Constraint, *, prompt_tail: str = "", budget: int | None = None
    ) -> Constraint:
        """The constraint of an answer whose text must be what `constraint` says.

        Reasoning may come before JSON, and before anything else where the prompt has begun it.
        """
        if not self.has_reasoning:
            return constraint
        if (schema := json_schema_of(constraint)) is not None:
            options = {"whitespace": constraint.whitespace, "prompt_tail": prompt_tail}
            made = self.grammar((), ToolChoice(), schema=schema, budget=budget, **options)
            assert made is not None
            return made
        limit = self._limit(budget, prompt_tail)
        if limit is not None and not limit.open:
            return attrs.evolve(constraint, reasoning=limit)
        after, _ = self._behind_reasoning(prompt_tail)
        return attrs.evolve(constraint, after=after)

    def _limit(self, budget: int | None, prompt_tail: str) -> ReasoningLimit | None:
        """None without a budget, and where the prompt has decided that there is no reasoning."""
        if budget is None or (marks := self.dialect.reasoning_marks) is None:
            return None
        opening, close, decided = marks
        tail, ids = prompt_tail.rstrip(), self._mark_ids
        if tail.endswith("".join(opening)):
            opening = ()
        elif tail.endswith(decided):
            return None
        return ReasoningLimit(
            budget, [ids.get(each, each) for each in opening], [ids.get(each, each) for each in close]
        )

    def _behind_reasoning(self, prompt_tail: str) -> tuple[tuple[int, ...], str]:
        """Where the prompt has opened reasoning that a token closes: that token, behind which alone the grammar holds."""
        region, ids = self.dialect.reasoning, self._mark_ids
        if region is None or region.close not in ids or not prompt_tail.rstrip().endswith(region.open):
            return (), prompt_tail
        return (ids[region.close],), region.close

    @property
    def _mark_ids(self) -> dict[str, int]:
        return {text: token_id for token_id, text in self.control_tokens.items()}

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation whose earlier calls have their arguments and ids as the family's template reads them.

        What cannot be changed stays as it is. An id of another shape is replaced wherever it stands, so that results still belong to
        their calls: clients may have it from another server, or have made it up.
        """
        ids: dict[str, str] = {}
        return [_turn(message, self.dialect, ids) for message in messages]


def json_schema_of(constraint: Constraint) -> Mapping[str, Any] | None:
    """The schema of a constraint that asks for JSON."""
    if constraint.kind == ConstraintKind.JSON_OBJECT:
        return {"type": "object"}
    return json.loads(constraint.text) if constraint.kind == ConstraintKind.JSON_SCHEMA else None


def choose_dialect(facts: DialectFacts, name: str | None = None) -> TokenizedDialect | None:
    """The dialect of a model, or the one of that name; None if nothing says which, and for `NO_DIALECT`.

    The model's own `response_template` goes first where it can be read, then the table by the chat template and the type.
    Raises `ModelLoadError` for a name that no dialect has, and for a `response_template` that was asked for and cannot be read.
    """
    if name == NO_DIALECT:
        return None
    dialect = _named(facts, name) if name else _found(facts)
    if dialect is None:
        return None
    tokens = {
        token_id: text
        for token_id, text in facts.added_tokens.items()
        if text and (token_id in facts.special or text in dialect.marks)
    }
    return TokenizedDialect(dialect, tokens)


def _named(facts: DialectFacts, name: str) -> Dialect:
    if name == RESPONSE_TEMPLATE:
        return read_response_template(facts.response_template or {})
    if name not in DIALECTS:
        known = ", ".join([*DIALECTS, RESPONSE_TEMPLATE, NO_DIALECT])
        raise ModelLoadError(f"there is no dialect {name!r}; the known ones are: {known}")
    return DIALECTS[name]


def _found(facts: DialectFacts) -> Dialect | None:
    if facts.response_template is not None:
        with contextlib.suppress(ModelLoadError):
            return read_response_template(facts.response_template)
    return dialect_of(facts.chat_template, facts.model_type)


def _turn(message: Message, dialect: Dialect, ids: dict[str, str]) -> Message:
    calls = message.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        return {**message, "tool_calls": [_call(call, dialect, ids) for call in calls]}
    answered = message.get("tool_call_id")
    if isinstance(answered, str) and answered in ids:
        return {**message, "tool_call_id": ids[answered]}
    return message


def _call(call: Any, dialect: Dialect, ids: dict[str, str]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = _arguments(function.get("arguments"), dialect.earlier_arguments)
    changed = {**call, "function": {**function, "arguments": arguments}}
    if isinstance(call_id := call.get("id"), str):
        changed["id"] = ids[call_id] = _shaped(call_id, dialect.call_ids, str(function.get("name")), len(ids))
    return changed


def _arguments(arguments: Any, wanted: str) -> Any:
    if wanted == "text" and isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if wanted == "object" and isinstance(arguments, str):
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return read if isinstance(read, dict) else arguments
    return arguments


def _shaped(call_id: str, shape: CallIds, name: str, index: int) -> str:
    if shape == "nine" and not (len(call_id) == _NINE and call_id.isascii() and call_id.isalnum()):
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:_NINE]
    if shape == "qualified" and not call_id.startswith("functions."):
        return f"functions.{name}:{index}"
    return call_id
