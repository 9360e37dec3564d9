"""A server whose model says what a script has for it: one token per character, and marks that are tokens.

The script maps words of a prompt to what is said after it, marks included; of several the one that stands last in the prompt.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nanoserve.adapters.llguidance.crew import Worker, start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.text.dialects.tokenized import choose_dialect
from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.ports.driven import NO_OPTIONS, Check, DialectFacts, Message
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.sampling import SamplingDefaults
from nanoserve.ports.tool_calls import Tool
from tests.fakes.memory_runner import MemoryRunner
from tests.fakes.pooled_texts import EncodesPooled
from tests.tiny_spec import tiny_spec
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

HARMONY: Final = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
MARKS: Final = ("<end>", "<think>", "</think>", "<tool_call>", "</tool_call>", *HARMONY)
VOCABULARY: Final = (*MARKS, "\n", *map(chr, range(32, 127)))
IDS: Final = {text: token for token, text in enumerate(VOCABULARY)}
CONTEXT: Final = 4096
CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
QUERIED: Final = 'a "b"\\c\n'
SCRIPT: Final = {
    "hello": "<think>\nI greet.\n</think>\n\nHi there",
    "prefilled": "short</think>done",
    "Rain?": f"<think>look up</think>Let me see.\n{CALL}\n{CALL.replace('Rome', 'Bonn')}",
    "no rain": "It stays dry.",
    "Broken?": '<tool_call>\n{"name": "weather", "arguments": "Rome, today"}\n</tool_call>',
    "Half?": r'<tool_call>{"name": "weather", "arguments": {"city": "\ud83d!\ud83d\ude00\ud83d"}}</tool_call>',
    "Query?": f'<tool_call>\n{{"name": "query", "arguments": {json.dumps({"input": QUERIED})}}}\n</tool_call>',
}
FACTS: Final = DialectFacts(added_tokens=dict(enumerate(MARKS)), special=frozenset(range(len(MARKS))))
_PIECES: Final = re.compile("|".join(map(re.escape, MARKS)) + "|.", re.DOTALL)


class TalkTokenizer(EncodesPooled):
    """One token per character of ASCII; marks are single tokens, which a prompt's text cannot have."""

    vocab_size = len(VOCABULARY)
    eos_token_ids = (IDS["<end>"],)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        found = _PIECES.findall(text) if parse_special else text
        ids = [IDS[each] for each in found if each in IDS]
        if check:
            check(len(ids))
        return ids

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        skipped = len(MARKS) if skip_special_tokens else 0
        return "".join(VOCABULARY[token] for token in token_ids if token >= skipped)

    def bytes_of(self, token_id: int, /) -> bytes:
        return VOCABULARY[token_id].encode()

    def text_of(self, token_id: int, /) -> str | None:
        return VOCABULARY[token_id] if token_id >= len(MARKS) else None


@attrs.define
class TalkTemplate:
    """Tools, options and messages as JSON; `given` is what it got last."""

    given: dict[str, Any] = attrs.field(factory=dict)

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
        self.given = {
            "messages": [dict(each) for each in messages],
            "tools": [each.as_message() for each in tools],
            "options": dict(options),
            "continues": continue_final_message,
        }
        text = json.dumps([self.given["tools"], self.given["messages"]])
        opening = "<think>" if options.get("prefill") else ""
        tokenizer = TalkTokenizer()
        return [*tokenizer.encode(text, parse_special=False), *tokenizer.encode(opening)]


class TalkingRunner(MemoryRunner):
    """Says what its script has, and where a mask forbids that, the first character that is no blank."""

    script: Mapping[str, str]

    def next_token(self, row: Any, mask: bytes | None) -> int:
        super().next_token(row, mask)
        tokenizer = TalkTokenizer()
        prompt = tokenizer.decode(row.token_ids[: row.num_prompt_tokens])
        places = {prompt.rfind(words): said for words, said in self.script.items()}
        said = [*tokenizer.encode(places[max(places)]), IDS["<end>"]]
        token = said[min(len(row.token_ids) - row.num_prompt_tokens, len(said) - 1)]
        if mask is None or mask[token >> 3] >> (token & 7) & 1:
            return int(token)
        allowed = [each for each in range(len(VOCABULARY)) if mask[each >> 3] >> (each & 7) & 1]
        return min(allowed, key=lambda each: (VOCABULARY[each].isspace(), each))


Talker = tuple[AppWorld, TalkTemplate]


@contextlib.contextmanager
def talking(
    script: Mapping[str, str],
    *,
    dialect: str | None = "qwen3",
    variables: Sequence[str] = ("enable_thinking",),
    **settings: Any,
) -> Iterator[Talker]:
    """The server, and the template that it renders with."""
    template = TalkTemplate()
    with app_world(
        assembly=talking_assembly(script, template),
        dialect=choose_dialect(FACTS, dialect or "none"),
        service=ServiceSettings(model_names=("talker",), template_variables=frozenset(variables), **settings),
    ) as world:
        yield world, template


def _start_workers() -> list[Worker]:
    """The tokens as grammars know them: bytes by the characters that byte-level tokenizers write for them."""
    written = {"\n": "Ċ", " ": "Ġ"}
    made = Tokenizer(models.BPE(vocab={written.get(each, each): IDS[each] for each in VOCABULARY}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(each, special=True) for each in MARKS])
    size = len(VOCABULARY)
    return start_workers(Settings(made.to_str(), tuple(TalkTokenizer.eos_token_ids), size, size), 1)


def talking_assembly(script: Mapping[str, str], template: TalkTemplate) -> Assembly:
    """Its engine, without a server."""
    spec = tiny_spec(vocab_size=len(VOCABULARY), max_position=CONTEXT, tied_embeddings=True)
    runner = TalkingRunner(spec.cache_groups, num_blocks=1024, block_size=64, vocab_size=spec.vocab_size)
    runner.script = script
    limits = Limits(
        max_model_len=CONTEXT,
        vocab_size=spec.vocab_size,
        num_blocks=1024,
        block_size=64,
        max_num_seqs=8,
        max_num_batched_tokens=CONTEXT,
    )
    tokenizer = TalkTokenizer()
    grammars = LLGrammars(_start_workers, workers=1)
    return Assembly(
        folder="talker",
        engine=Engine(
            limits=limits,
            cache_groups=spec.cache_groups,
            runner=runner,
            clock=SystemClock(),
            tokenizer=tokenizer,
            constraints=Constraints(grammars, runner),
        ),
        tokenizer=tokenizer,
        template=template,
        spec=attrs.evolve(spec, eos_token_ids=tokenizer.eos_token_ids),
        defaults=SamplingDefaults(),
        facts=EngineFacts(**limits.sizes(), pid=os.getpid(), model="talker", device="cpu", dtype="none"),
        dialect_facts=FACTS,
    )
