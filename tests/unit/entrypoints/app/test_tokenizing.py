from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import Tokenizing
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import PromptTooLongError
from tests.unit.entrypoints.scripted_world import ColonTemplate

BOS, END = 0, 1


@pytest.fixture(scope="module")
def tokenizing() -> Iterator[Tokenizing]:
    made = Tokenizing(HFTokenizer(str(model_folder())), ColonTemplate())
    yield made
    made.close()


async def test_a_text_that_brings_its_own_beginning_gets_no_second_one(tokenizing: Tokenizing) -> None:
    async def ids(text: str, *, add: bool = True) -> tuple[int, ...]:
        return await tokenizing.encode(text, add_special_tokens=add)

    plain = await ids("Hi there", add=False)
    assert BOS not in plain
    assert await ids("Hi there") == (BOS, *plain)
    assert await ids("<|bos|>Hi there") == (BOS, *plain)
    assert await ids("<|bos|>Hi there", add=False) == (BOS, *plain)
    assert await ids("<|bos|>") == await ids("") == (BOS,)
    assert await ids("<|end|>Hi there") == (BOS, END, *plain)
    assert await ids("<|end|><|end|>", add=False) == (END, END)


async def test_the_length_is_told_before_ids_are_listed(tokenizing: Tokenizing) -> None:
    asked: list[int] = []
    assert len(await tokenizing.encode("<|end|>" * 4, check=asked.append)) == 5
    assert asked == [5]

    def refuse(length: int) -> None:
        raise PromptTooLongError(f"has {length}")

    with pytest.raises(PromptTooLongError, match="has 5"):
        await tokenizing.encode("<|end|>" * 4, check=refuse)


class SlowTemplate(ColonTemplate):
    """Renders once it is let."""

    def __init__(self) -> None:
        self.is_asked, self.may_go = threading.Event(), threading.Event()

    def render(self, messages: Sequence[Message], /, **given: Any) -> list[int]:
        self.is_asked.set()
        self.may_go.wait()
        return super().render(messages, **given)


async def test_texts_are_encoded_and_decoded_while_a_template_takes_its_time() -> None:
    template = SlowTemplate()
    tokenizing = Tokenizing(HFTokenizer(str(model_folder())), template)
    alone = await tokenizing.encode("Hi there")
    rendering = asyncio.create_task(
        tokenizing.render(Conversation(messages=({"role": "u", "content": "a"},)))
    )
    await asyncio.to_thread(template.is_asked.wait)
    assert await tokenizing.encode("Hi there") == alone
    assert await tokenizing.decode(alone) == "Hi there"
    assert not rendering.done()
    template.may_go.set()
    assert await rendering == tuple(template.render([{"role": "u", "content": "a"}]))
    tokenizing.close()
