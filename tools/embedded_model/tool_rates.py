"""Measure calls of tools and thinking: tools that training never showed, answers from results, sums thought over."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tools.embedded_model.corpus.messages import Message, assistant, user
from tools.embedded_model.corpus.quizzes import color, counting, opposite
from tools.embedded_model.corpus.thoughts import draw_thought, worked_sum
from tools.embedded_model.corpus.tool_talks import offered_tools
from tools.embedded_model.corpus.toolbox import Call, Tool, Toolbox, ask, outcome
from tools.embedded_model.sampling import Answer, Messages, Sampler

_SEED: Final = 7
_CALL: Final = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_THOUGHT: Final = re.compile(r"[^<]+\n</think>\n\n(.+)", re.DOTALL)
_GREEDY: Final[dict[str, Any]] = {"do_sample": False, "temperature": None, "top_p": None}

Offer = tuple[list[Tool], str, list[Call]]


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


def _offers(samples: int, toolbox: Toolbox, times: int = 1) -> list[Offer]:
    """Tools that are offered, a question, and the calls that it wants."""
    rng = random.Random(_SEED)
    offers: list[Offer] = []
    while len(offers) < samples:
        tools = offered_tools(rng, toolbox)
        try:
            offers.append((tools, *ask(rng.choice(tools), rng, times)))
        except LookupError:
            continue
    return offers


def _described(offers: Sequence[Offer]) -> list[list[Mapping[str, Any]]]:
    return [[tool.described() for tool in tools] for tools, _, _ in offers]


def _calls(text: str) -> list[Any]:
    """The calls in an answer; one that is no JSON is None."""
    found: list[Any] = []
    for call in _CALL.findall(text):
        try:
            found.append(json.loads(call))
        except json.JSONDecodeError:
            found.append(None)
    return found


def _wanted(calls: Sequence[Call]) -> list[Message]:
    return [call.as_message()["function"] for call in calls]


def call_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often a question gets the call that it wants, by tools never seen in training and by known ones."""
    rates: dict[str, float] = {}
    boxes: tuple[tuple[Toolbox, str], ...] = (("held_out", "new tools"), ("tools", "known tools"))
    for toolbox, name in boxes:
        offers = _offers(samples, toolbox)
        answers = _asked(sampler, offers)
        calls = [_calls(answer.text) for answer in answers]
        whole = [bool(found) and None not in found for found in calls]
        named = [[each and each.get("name") for each in found] for found in calls]
        wanted = [_wanted(offer[2]) for offer in offers]
        rates |= {
            f"{name}: calls that are JSON": _mean(whole),
            f"{name}: calls of the right tool": _mean(
                [
                    names == [call["name"] for call in right]
                    for names, right in zip(named, wanted, strict=True)
                ]
            ),
            f"{name}: calls with exactly the right arguments": _mean(
                [found == right for found, right in zip(calls, wanted, strict=True)]
            ),
        }
    offers = _offers(samples, "tools", 2)
    both = [
        _calls(answer.text) == _wanted(offer[2])
        for answer, offer in zip(_asked(sampler, offers), offers, strict=True)
    ]
    thinking = [
        _calls(answer.text) == _wanted(offer[2])
        for answer, offer in zip(_asked(sampler, offers, thinks=True), offers, strict=True)
    ]
    return rates | {"two calls at once, both right": _mean(both), "the same after thinking": _mean(thinking)}


def _asked(sampler: Sampler, offers: Sequence[Offer], *, thinks: bool = False) -> list[Answer]:
    questions: list[Messages] = [[user(question)] for _, question, _ in offers]
    return sampler.chat(questions, _SEED, tools=_described(offers), thinks=thinks)


def outcome_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often an answer says a new tool's result in the words of the corpus, and how often no tool is called where none fits."""
    rng = random.Random(_SEED)
    offers = _offers(samples, "held_out")
    results = [outcome(calls[0], rng) for _, _, calls in offers]
    talks: list[Messages] = [
        [user(question), assistant("", "", [calls[0].as_message()]), {"role": "tool", "content": shown}]
        for (_, question, calls), (shown, _) in zip(offers, results, strict=True)
    ]
    said = sampler.chat(talks, _SEED, tools=_described(offers))
    easy: list[Messages] = [[user(rng.choice((color, counting, opposite))(rng)[0])] for _ in range(samples)]
    plain = sampler.chat(easy, _SEED, tools=_described(offers))
    return {
        "answers that say a new tool's result": _mean(
            [answer.text == right for answer, (_, right) in zip(said, results, strict=True)]
        ),
        "questions for no tool that get no call": _mean(
            ["<tool_call>" not in answer.text for answer in plain]
        ),
    }


def thinking_rates(sampler: Sampler, samples: int) -> dict[str, float]:
    """How often a thought ends and an answer follows; how often sums never asked in training are right (greedy)."""
    rng = random.Random(_SEED)
    any_thoughts = [draw_thought(rng) for _ in range(samples)]
    answers = sampler.chat([[user(each.question)] for each in any_thoughts], _SEED, thinks=True)
    sums = [worked_sum(rng, held_out=True) for _ in range(samples)]
    worked = sampler.chat([[user(each.question)] for each in sums], _SEED, thinks=True, **_GREEDY)
    found = [_THOUGHT.fullmatch(answer.text) for answer in worked]
    return {
        "thoughts that end, with an answer": _mean(
            [answer.stopped and _THOUGHT.fullmatch(answer.text) is not None for answer in answers]
        ),
        "held-out sums right after thinking (greedy)": _mean(
            [match is not None and match[1] == each.answer for match, each in zip(found, sums, strict=True)]
        ),
    }


_WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says whether it will rain.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def transcripts(sampler: Sampler) -> tuple[str, ...]:
    """A question with its call, its result and its answer, and a sum that is thought over: all as the model reads and writes it."""
    question = user("Will it rain in Lisbon in the next 3 days?")
    called = sampler.chat([[question]], _SEED, tools=[[_WEATHER]], **_GREEDY)[0].text
    calls = [{"type": "function", "function": call} for call in _calls(called) if call]
    talk = [question, assistant("", "", calls), {"role": "tool", "content": "no rain in Lisbon for 3 days"}]
    said = sampler.chat([talk], _SEED, tools=[[_WEATHER]], **_GREEDY)[0].text
    render: Any = sampler.tokenizer.apply_chat_template
    with_tool = str(render([*talk, assistant(said)], tools=[_WEATHER], tokenize=False))
    asked = [user("What is 27 + 15?")]
    thought = sampler.chat([asked], _SEED, thinks=True, **_GREEDY)[0].text
    opened = str(render(asked, tokenize=False, add_generation_prompt=True, enable_thinking=True))
    return with_tool, f"{opened}{thought}<|end|>"
