"""Questions whose answer is thought over first, in one or two short sentences: sums by steps, comparing, plans of stories."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import attrs

from tools.embedded_model.corpus.cast import given_name
from tools.embedded_model.corpus.quizzes import (
    Exchange,
    animal_fact,
    arithmetic,
    calendar_order,
    capital,
    color,
    counting,
    draw_quiz,
    echo,
    emoji,
    opposite,
    trade,
    unknown,
)
from tools.embedded_model.corpus.records import draw_record, request
from tools.embedded_model.corpus.requests import recall, told_story
from tools.embedded_model.corpus.stories import Story
from tools.embedded_model.corpus.template import with_article
from tools.embedded_model.corpus.values import joined
from tools.embedded_model.corpus.wordlists import words


@attrs.frozen
class Thought:
    """A question, what is thought about it, and the answer."""

    question: str
    thought: str
    answer: str


def steps(left: int, sign: str, right: int) -> str:
    """A sum worked out in writing: by tens and ones, a product by the one before it."""
    tens, ones = right - right % 10, right % 10
    if sign == "+" and tens and ones:
        return f"{left} + {tens} = {left + tens}, and {left + tens} + {ones} = {left + right}."
    if sign == "-" and tens and ones:
        return f"{left} - {tens} = {left - tens}, and {left - tens} - {ones} = {left - right}."
    if sign == "*" and right > 1:
        before = left * (right - 1)
        return f"{left} * {right - 1} = {before}, and {before} + {left} = {left * right}."
    return f"{left} {sign} {right} is an easy one."


def worked_sum(rng: random.Random, *, held_out: bool = False) -> Thought:
    """A sum of the quizzes by steps."""
    question, answer = arithmetic(rng, held_out=held_out)
    left, sign, right, *_ = answer.split(" ")
    return Thought(question, steps(int(left), sign, int(right)), answer)


def in_words(rng: random.Random) -> Thought:
    """A little story that asks for a sum."""
    name, thing = given_name(rng, rng.choice(("she", "he")), 0.3), rng.choice(words("goods"))
    while True:
        has, other, sign = rng.randint(2, 40), rng.randint(2, 20), rng.choice("+-")
        if (sign == "+" or other <= has) and (has * 31 + other * 17) % 10:
            break
    verb = (
        rng.choice(("buys", "gets", "finds")) if sign == "+" else rng.choice(("loses", "sells", "gives away"))
    )
    result = has + other if sign == "+" else has - other
    question = f"{name} has {has} {thing}s and {verb} {other}{' more' if sign == '+' else ''}. How many {thing}s does {name} have now?"
    kind = "It gets more" if sign == "+" else "It gets less"
    thought = f"{kind}: {has} {sign} {other}. {steps(has, sign, other)}"
    return Thought(question, thought, f"{name} has {result} {thing}s.")


def larger(rng: random.Random) -> Thought:
    """Which of two numbers is larger or smaller."""
    top = rng.choice((20, 99, 999))
    a, b = rng.sample(range(top + 1), 2)
    wanted, pick = rng.choice((("larger", max), ("smaller", min), ("greater", max), ("bigger", max)))
    question = rng.choice(
        (
            f"Which is {wanted}, {a} or {b}?",
            f"Which number is {wanted}: {a} or {b}?",
            f"What is {wanted}, {a} or {b}?",
        )
    )
    if len(str(a)) != len(str(b)):
        long, short = (a, b) if a > b else (b, a)
        thought = f"{long} has {len(str(long))} digits and {short} has {len(str(short))}, so {long} is more."
    else:
        place, (x, y) = next(
            (at, pair) for at, pair in enumerate(zip(str(a), str(b), strict=True)) if pair[0] != pair[1]
        )
        where = ("first", "second", "third")[place]
        thought = f"The {where} digits differ: {x} and {y}. {max(x, y)} is more than {min(x, y)}."
    return Thought(question, thought, f"{pick(a, b)} is {wanted} than {b if pick(a, b) == a else a}.")


def how_many(rng: random.Random) -> Thought:
    """How many things of a list there are."""
    kind, name = rng.choice(
        (("animals", "animals"), ("colors", "colors"), ("things", "goods"), ("jobs", "jobs"))
    )
    chosen = rng.sample(words(name), rng.randint(2, 6))
    question = rng.choice(("How many {} are these: {}?", "Count these {}: {}.")).format(kind, joined(chosen))
    thought = ", ".join(f"{entry} {number}" for number, entry in enumerate(chosen, 1)) + "."
    return Thought(question, thought, f"There are {len(chosen)} {kind}.")


def sorting(rng: random.Random) -> Thought:
    """Numbers in order."""
    numbers = rng.sample(range(1, 100), rng.randint(3, 4))
    up = rng.random() < 0.7
    ordered = sorted(numbers, reverse=not up)
    question = f"Sort {joined(list(map(str, numbers)))}" + ("." if up else " from large to small.")
    thought = f"{ordered[0]} is the {'smallest' if up else 'largest'}. Then comes {ordered[1]}."
    return Thought(question, thought, ", ".join(map(str, ordered)) + ".")


def _about(maker: Callable[[random.Random], Exchange], *thoughts: str) -> Callable[[random.Random], Thought]:
    def made(rng: random.Random) -> Thought:
        question, answer = maker(rng)
        return Thought(question, rng.choice(thoughts).format(answer=answer), answer)

    return made


def record(rng: random.Random) -> Thought:
    """A JSON record after its keys."""
    drawn = draw_record(rng)
    question, answer = request(drawn, rng)
    return Thought(
        question,
        f"That is a record of the kind {drawn.kind}. Its keys are {joined(list(drawn.fields))}.",
        answer,
    )


def planned_story(rng: random.Random) -> tuple[Thought, Story]:
    """A story after its plan, and the story."""
    (question, answer), story = told_story(rng)
    hero, friend = story.scene.hero, story.scene.friend
    plan = f"The hero is {hero.name}, {with_article(hero.kind)}. The friend is {friend.name}, {with_article(friend.kind)}."
    return Thought(question, plan, answer), story


def remembered(rng: random.Random) -> tuple[list[Exchange], Thought, Story | None]:
    """An earlier text and a question about it: a name, or a story."""
    if rng.random() < 0.5:
        name = given_name(rng, rng.choice(("she", "he")), 0.6)
        told = rng.choice(("My name is {}.", "I am {}.", "You can call me {}.")).format(name)
        asked = rng.choice(("What is my name?", "Do you remember my name?", "Who am I?"))
        thought = Thought(asked, f"The user said it before: {name}.", f"Your name is {name}.")
        return [(told, f"Hello, {name}!")], thought, None
    exchange, story = told_story(rng)
    asked, answer = recall(story.scene, rng)
    return [exchange], Thought(asked, "I look into the story that I told.", answer), story


def greeting(rng: random.Random) -> Exchange:
    """A greeting, or the question who is speaking."""
    return rng.choice(
        (
            ("Hello!", "Hello! What can I do for you?"),
            ("Hi", "Hello! Would you like to hear a story?"),
            ("How are you?", "I am fine. How can I help you?"),
            ("Thank you!", "You are welcome!"),
            (
                "Who are you?",
                "I am the small model in the nanoserve box. Ask me for a story, a small sum or a JSON record.",
            ),
        )
    )


_MAKERS: Final[tuple[Callable[[random.Random], Thought], ...]] = (
    *[worked_sum] * 6,
    *[in_words] * 2,
    *[larger] * 2,
    *[how_many] * 2,
    *[sorting] * 2,
    *[record] * 2,
    _about(capital, "This is about capitals. {answer}", "I know this one from my list of capitals."),
    _about(color, "I think of how it looks.", "This is about colors."),
    _about(opposite, "I need the word that means the other thing."),
    _about(animal_fact, "This is about animals."),
    _about(trade, "I think of a day at work."),
    _about(calendar_order, "I go through them in order."),
    _about(counting, "I begin with the first number and go on until the last."),
    _about(emoji, "I look for the sign."),
    _about(echo, "I say it again, word for word."),
    _about(unknown, "I do not know anything about this.", "This is too hard for me. I should say so."),
    _about(greeting, "The user is friendly, and so am I.", "I answer in a friendly way."),
    _about(draw_quiz, "I think that I know this."),
)


def draw_thought(rng: random.Random) -> Thought:
    """Draw a question that needs nothing said before."""
    return rng.choice(_MAKERS)(rng)


PUZZLES: Final = (in_words, larger, how_many, sorting)
"""Those that no quiz asks; they are also asked without thinking."""
