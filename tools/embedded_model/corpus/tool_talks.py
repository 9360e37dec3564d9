"""Conversations that offer tools: calls and answers from their results, several calls at once, and questions for no tool."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Final

import attrs

from tools.embedded_model.corpus.made_up_tools import made_up_tool
from tools.embedded_model.corpus.messages import Message, Talk, assistant, user
from tools.embedded_model.corpus.quizzes import (
    animal_fact,
    arithmetic,
    calendar_order,
    color,
    counting,
    echo,
    emoji,
    listing,
    opposite,
    trade,
)
from tools.embedded_model.corpus.records import draw_record, request
from tools.embedded_model.corpus.requests import told_story
from tools.embedded_model.corpus.stories import Story
from tools.embedded_model.corpus.thoughts import greeting
from tools.embedded_model.corpus.toolbox import Call, Tool, Toolbox, ask, draw_tool, follow_up, outcome
from tools.embedded_model.corpus.values import joined

SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Use the tools.",
    "You are an agent. Call a tool when it helps.",
    "Be kind and brief.",
    "You are a helpful assistant. Use tools where you need them.",
)
_SUMS: Final = "sums"
_ANSWERED_WITHOUT: Final = frozenset({_SUMS, "get_capital", "translate", "get_word", "count_letters"})
_NONE_FITS: Final = ("I have no tool for that.", "I am sorry, but none of my tools can do that.")
_PLAIN: Final = (
    animal_fact,
    calendar_order,
    color,
    counting,
    echo,
    emoji,
    listing,
    opposite,
    trade,
    greeting,
    greeting,
)


@attrs.define
class ToolTalk:
    """A conversation in the making; with `thinks` the messages behind its last question hold thoughts."""

    rng: random.Random
    tools: Sequence[Tool]
    toolbox: Toolbox
    messages: list[Message]
    thinks: bool = False
    last: Call | None = None
    told: list[Story] = attrs.field(factory=list)

    def _thought(self, text: str) -> str:
        return text if self.thinks else ""

    def exchange(self) -> None:
        """The next question and everything up to its answer."""
        draw = self.rng.random()
        if draw < 0.2:
            return self._plain()
        if draw < 0.26:
            return self._none_fits()
        asked, calls = self._asked()
        return self._called(asked, calls)

    def _asked(self) -> tuple[str, list[Call]]:
        rng = self.rng
        tool, draw = rng.choice(self.tools), rng.random()
        try:
            if self.last is not None and draw < 0.4:
                asked, call = follow_up(self.last, rng)
                return asked, [call]
            if draw > 0.85:
                return ask(tool, rng, rng.choice((2, 2, 2, 3)))
        except LookupError:
            pass
        asked, calls = ask(tool, rng)
        if draw > 0.8 and len(self.tools) > 1:
            other = rng.choice([each for each in self.tools if each is not tool])
            more, others = ask(other, rng)
            return f"{asked} {rng.choice(('', 'And: ', 'Also: '))}{more}", calls + others
        return asked, calls

    def _called(self, asked: str, calls: list[Call]) -> None:
        self.last = calls[0]
        outcomes = [outcome(call, self.rng) for call in calls]
        fit = joined(list(dict.fromkeys(call.tool.name for call in calls)))
        given = ", ".join(
            f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in calls[0].arguments.items()
        )
        why = f"The tool {fit} fits. " + (
            f"It gets {given}." if len(calls) == 1 else f"I need {len(calls)} calls."
        )
        self.messages += [
            user(asked),
            assistant("", self._thought(why), [call.as_message() for call in calls]),
            *({"role": "tool", "content": shown} for shown, _ in outcomes),
            assistant(
                _answer(calls, [said for _, said in outcomes]),
                self._thought("The tool has answered. I say what it found."),
            ),
        ]

    def _plain(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.1:
            (asked, answer), story = told_story(rng)
            self.told.append(story)
        elif draw < 0.25:
            asked, answer = request(draw_record(rng), rng)
        elif draw < 0.4 and not any(tool.topic == _SUMS for tool in self.tools):
            asked, answer = arithmetic(rng)
        else:
            asked, answer = rng.choice(_PLAIN)(rng)
        self.messages += [user(asked), assistant(answer, self._thought("No tool is needed for this."))]

    def _none_fits(self) -> None:
        topics = {tool.topic for tool in self.tools} | _ANSWERED_WITHOUT
        while (wanted := _any_tool(self.rng, self.toolbox)).topic in topics:
            pass
        asked, _ = ask(wanted, self.rng)
        self.messages += [
            user(asked),
            assistant(self.rng.choice(_NONE_FITS), self._thought("None of the tools fits.")),
        ]


def _answer(calls: Sequence[Call], sentences: Sequence[str]) -> str:
    """The results' sentences; those of several calls each behind what its call was about."""
    if len(calls) == 1:
        return sentences[0]
    subjects = [str(next(iter(call.arguments.values()))) for call in calls]
    return "\n".join(f"{subject}: {sentence}" for subject, sentence in zip(subjects, sentences, strict=True))


def _any_tool(rng: random.Random, toolbox: Toolbox) -> Tool:
    return made_up_tool(rng) if toolbox == "tools" and rng.random() < 0.5 else draw_tool(rng, toolbox)


def offered_tools(rng: random.Random, toolbox: Toolbox = "tools") -> list[Tool]:
    """One to four tools of different kinds and names."""
    tools: list[Tool] = []
    count = rng.choice((1, 1, 1, 1, 2, 2, 2, 3, 3, 4))
    while len(tools) < count:
        drawn = _any_tool(rng, toolbox)
        if not any(drawn.topic == each.topic or drawn.name == each.name for each in tools):
            tools.append(drawn)
    return tools


def tool_talk(
    rng: random.Random, toolbox: Toolbox = "tools", *, thinks: bool | None = None
) -> tuple[Talk, list[Story]]:
    """Draw a conversation of one to three questions, and the stories told in it; it thinks one time in four unless said."""
    tools = offered_tools(rng, toolbox)
    system: list[Message] = (
        [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.35 else []
    )
    talk = ToolTalk(rng, tools, toolbox, system)
    exchanges = rng.choice((1, 1, 1, 2, 2, 3))
    for number in range(exchanges):
        talk.thinks = number == exchanges - 1 and (rng.random() < 0.25 if thinks is None else thinks)
        talk.exchange()
    return Talk(talk.messages, [tool.described() for tool in tools]), talk.told


def extraction(rng: random.Random) -> tuple[str, str]:
    """A sentence and the names of what to take from it, and the JSON object that has it."""
    asked, calls = ask(_any_tool(rng, "tools"), rng)
    keys = joined(list(calls[0].arguments))
    wish = rng.choice(
        ("Write that as JSON with the keys {}.", "Give me {} as JSON.", "Make a JSON object with {}.")
    )
    return f"{asked} {wish.format(keys)}", json.dumps(dict(calls[0].arguments), ensure_ascii=False)
