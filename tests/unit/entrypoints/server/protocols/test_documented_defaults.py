"""The table of parameters in docs/server.md states the defaults that each interface applies."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from nanoserve.entrypoints.compose.config.configuration import SAMPLING_SETTINGS
from nanoserve.entrypoints.server.protocols.openai.chat import chat_sampling
from nanoserve.entrypoints.server.protocols.openai.completions import completion_sampling
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody, CompletionBody
from nanoserve.ports.sampling import PARAMETERS, Door, SamplingParams, set_by
from tools.parameter_table import table

STATED = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", table(), re.MULTILINE))


def applied(defaults: dict[str, Any]) -> tuple[SamplingParams, SamplingParams]:
    """What a chat and a completion that set nothing are sampled with."""
    facts = SimpleNamespace(max_logprobs=20)
    service: Any = SimpleNamespace(settings=SimpleNamespace(defaults=defaults), facts=facts)
    chat = chat_sampling(ChatBody(messages=[]), service)
    return chat, completion_sampling(CompletionBody(prompt="x"), service)[0]


def test_the_bound_of_an_answer_is_each_doors_own() -> None:
    chat, completion = applied({})
    (command,) = [each.default for each in SAMPLING_SETTINGS if each.name == "max_tokens"]
    assert chat.max_tokens is None
    python = SamplingParams().max_tokens
    assert completion.max_tokens == python
    said = f"none; {python} under `/v1/completions` and in Python, {command} for `nanoserve generate`"
    assert STATED["max_tokens"] == said


@pytest.mark.parametrize("name", sorted(STATED.keys() - {"max_tokens"}))
def test_what_is_left_out_takes_the_models_default_then_ours(name: str) -> None:
    ours = PARAMETERS[name].default
    plain = "" if ours in (None, ()) else str(ours).lower()
    is_models = name in set_by(Door.MODEL)
    assert STATED[name] == (f"the model's, else {plain}" if is_models else plain)
    assert {getattr(each, name) for each in applied({})} == {ours}
    if is_models:
        given = 7 if isinstance(ours, int) else 0.5
        assert {getattr(each, name) for each in applied({name: given})} == {given}
