"""An assembly without torch: letters as tokens, and a model that is a hash of what it reads through the block tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.domain.scheduling.limits import Limits, Policy
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.choices import make_classes
from nanoserve.ports.driven import ChatTemplate, Check, Clock, Message
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError, StepFailedError
from nanoserve.ports.sampling import SamplingDefaults
from tests.fakes.memory_runner import MemoryRunner, expected_token
from tests.fakes.pooled_texts import EncodesPooled
from tests.tiny_spec import tiny_spec

LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?"
SPEC = tiny_spec(vocab_size=len(LETTERS), max_position=128, tied_embeddings=True)


class LetterTokenizer(EncodesPooled):
    """One token per letter; other characters are dropped."""

    vocab_size = len(LETTERS)
    eos_token_ids: tuple[int, ...] = ()

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        ids = [LETTERS.index(letter) for letter in text if letter in LETTERS]
        if check:
            check(len(ids))
        return ids

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        return "".join(LETTERS[token] for token in token_ids)

    def bytes_of(self, token_id: int, /) -> bytes:
        return LETTERS[token_id].encode()

    def text_of(self, token_id: int, /) -> str | None:
        return LETTERS[token_id]


class ColonTemplate:
    """`role.content` for every message."""

    def render(
        self, messages: Sequence[Message], /, *, add_generation_prompt: bool = True, **_: Any
    ) -> list[int]:
        text = "".join(f"{each['role']}.{each['content']}." for each in messages)
        return LetterTokenizer().encode(text)


class LetterTemplate:
    """`role.content.` for every message; text parts are joined by a blank. A final one to continue has no dot behind it."""

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **_: Any,
    ) -> list[int]:
        if not messages:
            raise BadValueError("messages", "must hold at least one message")
        text = "".join(f"{each['role']}.{_text(each['content'])}." for each in messages)
        if continue_final_message:
            return LetterTokenizer().encode(text[:-1])
        return LetterTokenizer().encode(text + ("assistant." if add_generation_prompt else ""))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def scripted_assembly(
    *,
    num_blocks: int = 200,
    max_tokens: int | None = None,
    max_num_seqs: int = 8,
    fail_at: dict[int, StepFailedError] | None = None,
    defaults: SamplingDefaults | None = None,
    policy: Policy = Policy.FCFS,
    eos_token_ids: tuple[int, ...] = (),
    template: ChatTemplate | None = None,
    clock: Clock | None = None,
) -> Assembly:
    """An engine over the memory runner, which raises where a plan is wrong; audited after every turn.

    A sequence may have 128 tokens and a step 64, or both `max_tokens`.
    """
    runner = MemoryRunner(
        SPEC.cache_groups, num_blocks=num_blocks, block_size=4, vocab_size=SPEC.vocab_size, fail_at=fail_at
    )
    limits = Limits(
        max_model_len=max_tokens or SPEC.max_position,
        vocab_size=SPEC.vocab_size,
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens or 64,
        policy=policy,
        classes=make_classes(None),
    )
    tokenizer = LetterTokenizer()
    engine = Engine(
        limits=limits,
        cache_groups=SPEC.cache_groups,
        runner=runner,
        clock=clock or SystemClock(),
        tokenizer=tokenizer,
        paranoid=True,
    )
    return Assembly(
        folder="scripted",
        engine=engine,
        tokenizer=tokenizer,
        template=template or ColonTemplate(),
        spec=attrs.evolve(SPEC, eos_token_ids=eos_token_ids),
        defaults=defaults or SamplingDefaults(),
        facts=EngineFacts(
            **limits.sizes(),
            pid=os.getpid(),
            model="scripted",
            device="cpu",
            dtype="none",
            products={"float32": "by hand"},
        ),
    )


def alone(prompt: str, *, seed: int = 7, index: int = 0, tokens: int = 12) -> str:
    """What the scripted model says to a prompt, computed without any engine."""
    ids = LetterTokenizer().encode(prompt)
    for _ in range(tokens):
        ids.append(expected_token(ids, derive_seed(seed, index), SPEC.vocab_size))
    return LetterTokenizer().decode(ids[len(prompt) :])


def interrupt_in_turn(engine: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Press Ctrl-C inside the engine's turn of that number; returns the list that counts turns."""
    turns: list[int] = []
    real = engine.turn

    def turn() -> Any:
        turns.append(len(turns))
        if len(turns) == number:
            os.kill(os.getpid(), signal.SIGINT)
        return real()

    monkeypatch.setattr(engine, "turn", turn)
    return turns
