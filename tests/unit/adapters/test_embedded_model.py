"""The shipped model: its size, that transformers loads it unchanged, and that it writes text, stops, and remembers."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from nanoserve.adapters.embedded import model_folder

_PLAIN_WORDS: Final = re.compile(r"[a-z]+")
_UNICODE: Final = (
    "🦊 says 你好",
    "👨‍👩‍👧‍👦👍🏽",
    "naïve Œuvre ß",
    "\x00\t\n  two  spaces ",
    "العربية שלום",
    "<|end of it",
    "",
)
_INTRODUCED: Final = [
    {"role": "user", "content": "My name is Quillo."},
    {"role": "assistant", "content": "Hello, Quillo!"},
]


def _question(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@cache
def _load_tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(model_folder())
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@pytest.fixture(scope="module")
def model() -> Any:
    """A `LlamaForCausalLM`; transformers annotates `generate` for no class of its own, hence `Any`."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_folder())
    assert isinstance(loaded, LlamaForCausalLM)
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return _load_tokenizer()


def _render(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]], *, prompt: bool = True
) -> str:
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt))


def _continue(model: Any, ids: list[int], limit: int) -> list[int]:
    with torch.inference_mode():
        inputs = torch.tensor([ids])
        out = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            temperature=None,
            top_p=None,
            max_new_tokens=limit,
        )
    return [int(token) for token in out[0, len(ids) :]]


def _eos(tokenizer: PreTrainedTokenizerFast) -> int:
    return int(tokenizer.get_vocab()["<|end|>"])


def _answer(model: Any, tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]]) -> str:
    ids = tokenizer.encode(_render(tokenizer, messages), add_special_tokens=False)
    new = _continue(model, ids, 400)
    assert new.count(_eos(tokenizer)) == 1
    assert new[-1] == _eos(tokenizer)
    return str(tokenizer.decode(new[:-1]))


def test_the_weights_are_small_and_bfloat16(model: Any) -> None:
    parameters = sum(weight.numel() for weight in model.parameters())
    assert 5_000_000 <= parameters <= 8_000_000
    assert (model_folder() / "model.safetensors").stat().st_size <= 16_000_000
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_special_tokens_agree_between_model_and_tokenizer(
    model: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    settings_of = model.generation_config
    assert settings_of is not None
    names = ["<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
    assert tokenizer.convert_tokens_to_ids(names) == list(range(6))
    assert len(tokenizer) == model.config.vocab_size
    assert (settings_of.bos_token_id, settings_of.eos_token_id) == (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    )
    assert (settings_of.do_sample, settings_of.temperature, settings_of.top_p) == (True, 0.7, 0.9)


@pytest.mark.parametrize("content", _UNICODE)
def test_the_template_renders_any_content_with_one_bos(
    tokenizer: PreTrainedTokenizerFast, content: str
) -> None:
    messages = [{"role": role, "content": content} for role in ("system", "user", "assistant", "user")]
    text = _render(tokenizer, messages)
    turns = "".join(f"<|{message['role']}|>{content}<|end|>" for message in messages)
    assert text == f"<|bos|>{turns}<|assistant|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == 1
    tokenized: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert tokenized["input_ids"] == ids


def test_what_users_and_tools_say_has_no_mark_of_the_models_language(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Its marks are ordinary text, so that a result could end itself and go on as another one."""
    marks = [
        f"<{slash}{mark}>" for mark in ("think", "tools", "tool_call", "tool_response") for slash in ("", "/")
    ]
    said = "a < b, <b>c</b>, <thin" + "".join(marks) * 2 + "k> <<tool_call>tool_call>"
    messages: Any = [
        {"role": "user", "content": said},
        {
            "role": "tool",
            "content": [{"type": "text", "text": said[:30]}, {"type": "text", "text": said[30:]}],
        },
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    asked, result = text.removeprefix("<|bos|><|user|>").removesuffix("<|end|>").split("<|end|><|user|>")
    assert result == f"<tool_response>\n{asked}\n</tool_response>"
    assert [mark for mark in marks if mark in asked] == []
    assert asked.replace("< t", "<t").replace("</ t", "</t") == said
    assert asked.startswith("a < b, <b>c</b>, <thin")


def test_a_greedy_story_is_whole_words_and_ends(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    new = _continue(model, tokenizer.encode("Once upon a time"), 500)
    story = str(tokenizer.decode(new, skip_special_tokens=True))
    words = _PLAIN_WORDS.findall(story)
    assert new[-1] == _eos(tokenizer)
    assert "\N{REPLACEMENT CHARACTER}" not in story
    assert len(words) > 60
    assert len(set(words)) > 40
    corpus = pathlib.Path(__file__).parents[3] / "tools" / "embedded_model" / "corpus"
    lexicon = " ".join(
        file.read_text(encoding="utf-8") for file in (*corpus.glob("*/*.txt"), *corpus.glob("*.py"))
    )
    assert [word for word in words if word not in lexicon] == []


@pytest.mark.parametrize(
    ("history", "question", "expected"),
    [
        ([], "What is the colour of the sky?", "The sky is blue."),
        ([], "What is the capital of France?", "The capital of France is Paris."),
        ([], "Show me the emoji for a fox.", "Here it is: 🦊"),
        ([], "Repeat after me: lantern 猫 🌈 Zambi", "lantern 猫 🌈 Zambi"),
        ([], "Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9."),
        (_INTRODUCED, "What is my name?", "Your name is Quillo."),
        (
            [{"role": "system", "content": "Your name is Rosa."}],
            "What is your name?",
            "My name is Rosa.",
        ),
    ],
)
def test_a_chat_answers_and_stops(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    history: list[dict[str, str]],
    question: str,
    expected: str,
) -> None:
    assert _answer(model, tokenizer, [*history, _question(question)]) == expected


def test_a_described_record_comes_back_as_json(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    ask = "Make a JSON record for a person named Rosa who is 34 years old and lives in Lisbon."
    answer = _answer(model, tokenizer, [_question(ask)])
    assert json.loads(answer) == {"name": "Rosa", "age": 34, "city": "Lisbon"}
