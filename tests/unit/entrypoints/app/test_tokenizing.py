from __future__ import annotations

from collections.abc import Iterator

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.entrypoints.app.tokenizing import Tokenizing
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
