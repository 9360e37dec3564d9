"""Short questions with one right answer: arithmetic, colors, capitals, opposites, sounds, counting, echoes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tools.embedded_model.corpus.cast import invented_name
from tools.embedded_model.corpus.template import capitalized, with_article
from tools.embedded_model.corpus.wordlists import pairs, words

Exchange = tuple[str, str]
_UNKNOWN_TASKS: Final = (
    "Tell me a joke.",
    "Write a poem.",
    "Write a Python program.",
    "Translate this into French.",
    "Sing a song.",
    "Write an email to my boss.",
    "What time is it?",
    "What is the news today?",
    "Help me with my homework.",
    "Summarize this article.",
    "Fix this code.",
    "Where am I?",
    "How old are you?",
    "Plan my holiday.",
)
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
HELD_OUT_SUMS: Final = 10
_EMOJI_AND_SCRIPTS: Final = (
    "🦊",
    "🐻",
    "🌈",
    "🎉",
    "👨‍👩‍👧‍👦",
    "👍🏽",
    "猫",
    "犬",
    "山",
    "水",
    "日本",
    "你好",
    "こんにちは",
    "안녕",
    "é",
    "ñ",
    "ü",
    "ß",
)


def arithmetic(rng: random.Random, *, held_out: bool = False) -> Exchange:
    """A sum, difference or product; one sum in `HELD_OUT_SUMS` never appears unless `held_out`."""
    while True:
        sign = rng.choice("++-*")
        largest = 10 if sign == "*" else rng.choice((12, 20, 50))
        a, b = rng.randint(0, largest), rng.randint(0, largest)
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        if ((a * 31 + b * 17) % HELD_OUT_SUMS == 0) == held_out:
            break
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    question = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"What is {a} {word} {b}?",
            f"{a} {sign} {b} = ?",
            f"How much is {a} {sign} {b}?",
        )
    )
    return question, f"{a} {sign} {b} = {result}."


def color(rng: random.Random) -> Exchange:
    """The color of a well-known thing."""
    thing, answer = rng.choice(pairs("colored_things"))
    spelled = rng.choice(("color", "colour"))
    question = rng.choice(
        (
            f"What is the {spelled} of {thing}?",
            f"What {spelled} is {thing}?",
            f"Which {spelled} does {thing} have?",
        )
    )
    return question, f"{capitalized(thing)} is {answer}."


def capital(rng: random.Random) -> Exchange:
    """The capital of a country."""
    country, city = rng.choice(pairs("capitals"))
    question = rng.choice(
        (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"Name the capital of {country}.",
        )
    )
    return question, f"The capital of {country} is {city}."


def opposite(rng: random.Random) -> Exchange:
    """A word and its opposite, either way round."""
    first, second = rng.sample(rng.choice(pairs("opposites")), 2)
    question = rng.choice(
        (f"What is the opposite of {first}?", f"Give me the opposite of {first}.", f"Opposite of {first}?")
    )
    return question, f"The opposite of {first} is {second}."


def animal_fact(rng: random.Random) -> Exchange:
    """The sound of an animal, or what its young is called."""
    if rng.random() < 0.5:
        animal, sound = rng.choice(pairs("sounds"))
        return rng.choice(
            (f"What sound does {with_article(animal)} make?", f"What does {with_article(animal)} do?")
        ), f"{capitalized(with_article(animal))} {sound}."
    animal, young = rng.choice(pairs("babies"))
    return f"What is a young {animal} called?", f"A young {animal} is called {with_article(young)}."


def trade(rng: random.Random) -> Exchange:
    """The work of each profession."""
    worker, work = rng.choice(pairs("trades"))
    return f"What does {with_article(worker)} do?", f"{capitalized(with_article(worker))} {work}."


def calendar_order(rng: random.Random) -> Exchange:
    """The day or month after or before another."""
    unit, ring = rng.choice((("day", DAYS), ("month", MONTHS)))
    at, step = rng.randrange(len(ring)), rng.choice((1, -1))
    where = "after" if step == 1 else "before"
    return (
        f"Which {unit} comes {where} {ring[at]}?",
        f"{ring[(at + step) % len(ring)]} comes {where} {ring[at]}.",
    )


def counting(rng: random.Random) -> Exchange:
    """Counting up or down between two numbers."""
    start = rng.randint(1, 40)
    end = start + rng.randint(2, 12)
    numbers = list(range(start, end + 1))
    if rng.random() < 0.3:
        numbers.reverse()
    return f"Count from {numbers[0]} to {numbers[-1]}.", ", ".join(map(str, numbers)) + "."


def listing(rng: random.Random) -> Exchange:
    """A list of three to five words of one kind."""
    plural, name = rng.choice(
        (
            ("animals", "animals"),
            ("colors", "colors"),
            ("cities", "cities"),
            ("things in a house", "goods"),
            ("jobs", "jobs"),
            ("hobbies", "hobbies"),
            ("kinds of food", "foods"),
        )
    )
    count, word = rng.choice(((3, "three"), (4, "four"), (5, "five")))
    chosen = rng.sample(words(name), count)
    question = rng.choice((f"Name {word} {plural}.", f"Tell me {word} {plural}.", f"List {word} {plural}."))
    if question.startswith("List"):
        return question, "\n".join(
            f"{number}. {capitalized(entry)}" for number, entry in enumerate(chosen, 1)
        )
    return question, capitalized(", ".join(chosen[:-1]) + f" and {chosen[-1]}.")


def emoji(rng: random.Random) -> Exchange:
    """The emoji of a thing, or the thing of an emoji."""
    name, symbol = rng.choice(pairs("emoji"))
    if rng.random() < 0.7:
        return rng.choice(
            (f"Show me the emoji for {name}.", f"What is the emoji for {name}?", f"Emoji for {name}, please.")
        ), f"Here it is: {symbol}"
    return f"What does {symbol} mean?", f"{symbol} means {name}."


def hello(rng: random.Random) -> Exchange:
    """The word for hello in a language."""
    language, word = rng.choice(pairs("greetings"))
    return rng.choice(
        (f"How do you say hello in {language}?", f"What is hello in {language}?", f"Say hello in {language}.")
    ), f"In {language}, hello is {word}."


def echo(rng: random.Random) -> Exchange:
    """A phrase to repeat word for word, with names never seen and characters beyond ASCII."""
    pools = (words("animals"), words("colors"), words("things"), _EMOJI_AND_SCRIPTS)
    parts = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.5:
        parts.insert(rng.randint(0, len(parts)), invented_name(rng))
    phrase = " ".join(parts)
    return rng.choice((f"Repeat after me: {phrase}", f"Say this: {phrase}", f"Echo: {phrase}")), phrase


def unknown(rng: random.Random) -> Exchange:
    """A question outside the corpus and the honest answer."""
    topic = rng.choice(words("unknown_topics")) if rng.random() < 0.7 else invented_name(rng)
    question = rng.choice(
        (
            f"Explain {topic}.",
            f"What do you know about {topic}?",
            f"Tell me about {topic}.",
            f"How does {topic} work?",
            f"Write an essay about {topic}.",
            f"What is {topic}?",
            f"Can you explain {topic} to me?",
            f"Who invented {topic}?",
        )
    )
    question = rng.choice(_UNKNOWN_TASKS) if rng.random() < 0.25 else question
    answer = rng.choice(
        (
            "I am only a very small model, so I do not know that. I can tell you a story instead.",
            "I am sorry, but I do not know anything about that. Ask me for a story or a JSON record.",
            "That is too hard for me. I know stories, colors, small sums and JSON records.",
        )
    )
    return question, answer


QUIZZES: Final[tuple[Callable[[random.Random], Exchange], ...]] = (
    arithmetic,
    arithmetic,
    arithmetic,
    arithmetic,
    color,
    capital,
    opposite,
    animal_fact,
    trade,
    calendar_order,
    counting,
    listing,
    emoji,
    hello,
    echo,
    echo,
    unknown,
)


def draw_quiz(rng: random.Random) -> Exchange:
    """Draw one question and its answer."""
    return rng.choice(QUIZZES)(rng)
