"""Values of arguments and results: of a kind such as `city` or `int 1 9`, as JSON has them and as a user says them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import attrs

from tools.embedded_model.corpus.cast import given_name, invented_name
from tools.embedded_model.corpus.quizzes import DAYS
from tools.embedded_model.corpus.wordlists import fields, pairs, words

Json = str | int | float | bool | list[str]
_NUMBER_WORDS: Final = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_LISTS: Final = {
    "skies": "skies",
    "animal": "animals",
    "color": "colors",
    "food": "foods",
    "goods": "goods",
    "thing": "things",
    "job": "jobs",
    "hobby": "hobbies",
}
_CHOICES: Final = {
    "day": DAYS,
    "currency": ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "dollars", "euros", "pounds", "yen", "francs"),
    "unit": ("meters", "miles", "feet", "inches", "km", "cm", "yards", "liters", "kilos", "grams", "hours"),
    "event": ("lunch", "a meeting", "the dentist", "chess", "a party", "dinner", "football", "the market"),
    "room": ("the kitchen", "the hall", "the garden", "kitchen", "bedroom", "the attic", "office", "hall"),
    "folder": ("src", "docs", "home", "/tmp", "photos", "music", "tests", "data/old", "work", "letters"),  # noqa: S108 - only a word
    "table": ("users", "orders", "books", "pets", "events", "cities", "songs", "prices", "visits"),
}
_PHRASES: Final = (
    "I will be late",
    "See you soon",
    "The soup is ready",
    "Happy birthday",
    "Please call me back",
    "We meet at the station",
    "Thank you for the present",
    "I have lost my keys",
    "Good morning",
    "Do not wait for me",
    "The train is late",
    "I am at home",
    "The door is open",
    "Bring the umbrella",
)
_TASKS: Final = ("buy", "clean", "paint", "find", "sell", "repair", "bring back", "wash", "draw", "wrap")
_ENDINGS: Final = (".txt", ".py", ".md", ".csv", ".json", ".toml", ".html")


@attrs.frozen
class Value:
    """One value, and how it stands in a sentence."""

    json: Json
    said: str


def _same(text: str) -> Value:
    return Value(text, text)


def _integer(rng: random.Random, low: str, high: str) -> Value:
    bottom, top = int(low), int(high)
    top = rng.choice((top, min(top, bottom + 30)))
    number = rng.randint(bottom, top)
    if 2 <= number <= 10 and rng.random() < 0.12:
        return Value(number, _NUMBER_WORDS[number - 2])
    return Value(number, str(number))


def _number(rng: random.Random, low: str, high: str) -> Value:
    number = rng.randint(int(low), int(high)) + rng.choice((0.0, 0.5, 0.25, 0.1, 0.9))
    return Value(number, str(number))


def _city(rng: random.Random) -> Value:
    if rng.random() < 0.25:
        return _same(invented_name(rng))
    return _same(rng.choice(words("cities")) if rng.random() < 0.6 else rng.choice(pairs("capitals"))[1])


def _person(rng: random.Random) -> Value:
    name = given_name(rng, rng.choice(("she", "he")), 0.35)
    return _same(f"{name} {invented_name(rng)}" if rng.random() < 0.12 else name)


def _word(rng: random.Random) -> Value:
    pool = (*words("things"), *words("animals"), *words("colors"), *words("traits"), *words("foods"))
    return _same(invented_name(rng).lower() if rng.random() < 0.3 else rng.choice(pool))


def _topic(rng: random.Random) -> Value:
    draw = rng.random()
    if draw < 0.3:
        return _same(rng.choice(words("unknown_topics")))
    if draw < 0.5:
        return _same(f"{rng.choice(words('colors'))} {rng.choice(words('things'))}")
    if draw < 0.7:
        return _same(f"{rng.choice(words('animals'))} {rng.choice(words('foods'))}")
    return _same(invented_name(rng)) if draw < 0.85 else _word(rng)


def _title(rng: random.Random) -> Value:
    color, thing = rng.choice(words("colors")).title(), rng.choice(words("things")).title()
    animal, name = rng.choice(words("animals")).title(), invented_name(rng)
    return _same(
        rng.choice(
            (
                f"The {color} {thing}",
                f"{name}",
                f"The {animal}",
                f"{name} and the {animal}",
                f"{color} {animal}",
            )
        )
    )


def _phrase(rng: random.Random) -> Value:
    if rng.random() < 0.5:
        return _same(rng.choice(_PHRASES))
    name, thing = _person(rng).said, rng.choice(words("things"))
    return _same(
        rng.choice(
            (
                f"{name} has the {thing}",
                f"Where is the {thing}",
                f"The {thing} is for {name}",
                f"{name} is here",
            )
        )
    )


def _time(rng: random.Random) -> Value:
    return _same(f"{rng.randint(0, 23):02}:{rng.choice(('00', '15', '30', '45', '05', '50'))}")


def _email(rng: random.Random) -> Value:
    return _same(
        f"{_person(rng).said.split()[0].lower()}@{invented_name(rng).lower()}.{rng.choice(('com', 'org', 'net'))}"
    )


def _code(rng: random.Random) -> Value:
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTVX") for _ in range(rng.randint(2, 4)))
    return _same(letters + (str(rng.randint(1, 999)) if rng.random() < 0.5 else ""))


def _expression(rng: random.Random) -> Value:
    numbers = [rng.randint(1, rng.choice((12, 99, 999))) for _ in range(rng.choice((2, 2, 2, 3)))]
    return _same(str(numbers[0]) + "".join(f" {rng.choice('+-*/')} {number}" for number in numbers[1:]))


def _code_line(rng: random.Random) -> Value:
    a, b, name = rng.randint(1, 99), rng.randint(1, 99), invented_name(rng).lower()
    return _same(
        rng.choice(
            (f"print({a} {rng.choice('+-*')} {b})", f"len('{name}')", f"{name} = {a}", f"max({a}, {b})")
        )
    )


def _file(rng: random.Random) -> Value:
    stem = rng.choice(
        (rng.choice(words("animals")), invented_name(rng).lower(), "notes", "README", "main", "list")
    )
    folder = f"{rng.choice(_CHOICES['folder'])}/" if rng.random() < 0.3 else ""
    return _same(folder + stem + rng.choice(_ENDINGS))


def _task(rng: random.Random) -> Value:
    return _same(f"{rng.choice(_TASKS)} the {rng.choice(words('things'))}")


def _list(rng: random.Random, kind: str) -> Value:
    chosen = list(dict.fromkeys(draw_value(kind, rng).said for _ in range(rng.randint(2, 4))))
    return Value(list(chosen), joined(chosen))


def _flag(rng: random.Random, pair: str) -> Value:
    is_on = rng.random() < 0.5
    return Value(is_on, pair.split("/")[0 if is_on else 1])


def joined(entries: list[str]) -> str:
    """The entries as a sentence lists them: "a, b and c"."""
    return entries[0] if len(entries) == 1 else f"{', '.join(entries[:-1])} and {entries[-1]}"


_MAKERS: Final[dict[str, Callable[..., Value]]] = {
    "int": _integer,
    "number": _number,
    "city": _city,
    "person": _person,
    "word": _word,
    "topic": _topic,
    "title": _title,
    "phrase": _phrase,
    "time": _time,
    "email": _email,
    "code": _code,
    "expression": _expression,
    "code_line": _code_line,
    "file": _file,
    "task": _task,
    "list": _list,
    "flag": _flag,
    "choice": lambda rng, options: _same(rng.choice(options.split("/"))),
    "invented": lambda rng: _same(invented_name(rng)),
    "country": lambda rng: _same(rng.choice(pairs("capitals"))[0]),
    "language": lambda rng: _same(rng.choice(pairs("greetings"))[0]),
    "place": lambda rng: _same(rng.choice(fields("outdoor_places"))[0]),
}


def draw_value(kind: str, rng: random.Random) -> Value:
    """Draw a value of a kind such as `city`, `int 1 9`, `choice on/off` or `list goods`."""
    name, *rest = kind.split(" ")
    if name in _LISTS:
        return _same(rng.choice(words(_LISTS[name])))
    if name in _CHOICES:
        return _same(rng.choice(_CHOICES[name]))
    return _MAKERS[name](rng, *rest)


def schema_of(kind: str) -> dict[str, object]:
    """The JSON schema of a kind's values."""
    name, *rest = kind.split(" ")
    if name == "list":
        return {"type": "array", "items": {"type": "string"}}
    if name == "choice":
        return {"type": "string", "enum": rest[0].split("/")}
    return {"type": {"int": "integer", "number": "number", "flag": "boolean"}.get(name, "string")}
