"""Made-up tools: any verb or trait, any noun and any roles, so that names and arguments can only be copied and never remembered."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Final

from tools.embedded_model.corpus.cast import invented_name
from tools.embedded_model.corpus.template import capitalized, with_article
from tools.embedded_model.corpus.toolbox import Parameter, Tool, styled
from tools.embedded_model.corpus.wordlists import words

_SLOT: Final = re.compile(r"\{[^{}]*\}")
_ROLES: Final = Path(__file__).parent / "toolbox" / "roles.txt"
_RESULTS: Final = (
    "status: choice done/open/ready/late/failed",
    "id: int 1 999",
    "count: int 0 99; state: word",
    "result: word",
    "price: int 1 99; day: day",
    "minutes: int 1 90",
    "value: number 1 99",
    "names: list person",
)
_TEXTS: Final = (
    "ok",
    "done",
    "{int 1 99}",
    "{word}",
    "ready on {day}",
    "{int 2 40} minutes",
    "the {thing} is ready",
)


@cache
def _roles() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    lines = [line for line in _ROLES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = (line.split(" | ") for line in lines)
    return tuple((kind, said, tuple(names.split(", "))) for kind, said, names in rows)


def made_up_tool(rng: random.Random) -> Tool:
    """Draw a tool with one to four parameters."""
    asks_trait = rng.random() < 0.35
    noun = rng.choice(words(rng.choice(("things", "goods", "animals", "foods", "workers", "things"))))
    noun = invented_name(rng).lower() if rng.random() < 0.15 else noun
    verb = rng.choice(words("tool_traits" if asks_trait else "tool_verbs"))
    parameters, phrases = _parameters(rng)
    phrases.sort(key=lambda _: rng.random())
    tail = " ".join(phrases[: rng.randint(len(phrases) - 1, len(phrases))] if len(phrases) > 1 else phrases)
    required = {
        each.slot
        for each in parameters
        if {f"{{{each.slot}}}", f"{{a {each.slot}}}"} & set(_SLOT.findall(tail))
    }
    parameters = [
        Parameter(each.slot, each.name, each.kind, optional=each.slot not in required or rng.random() < 0.2)
        for each in parameters
    ]
    words_of = _words_of_trait if asks_trait else _words_of_verb
    asks, about, names = words_of(verb, noun, (tail, " ".join(phrases)), rng)
    name = invented_name(rng).lower() if rng.random() < 0.12 else rng.choice(names)
    return Tool(
        f"{verb} {noun}",
        styled(name, rng),
        "" if rng.random() < 0.15 else about,
        tuple(parameters),
        asks,
        _RESULTS,
        _TEXTS,
    )


def _words_of_trait(
    trait: str, noun: str, tails: tuple[str, str], rng: random.Random
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """What is asked for a trait of a thing, what such a tool is for, and its names."""
    asks = tuple(
        f"{start} {trait} of the {noun} {tails[0]}{end}"
        for start in ("What is the", "Tell me the", "[Find|Get|Show me] the")
        for end in "?."
    )
    abouts = (
        f"The {trait} of {with_article(noun)}.",
        f"Tells the {trait} of the {noun}.",
        f"{capitalized(trait)} of a thing.",
    )
    thing = _joined(noun)
    names = (f"get_{thing}_{trait}", f"{thing}_{trait}", trait, f"{trait}_of_{thing}", f"find_{trait}")
    return asks, rng.choice(abouts), names


def _words_of_verb(
    verb: str, noun: str, tails: tuple[str, str], rng: random.Random
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """The same for doing something with a thing."""
    heads = (
        f"{capitalized(verb)} the {noun}",
        f"Please {verb} the {noun}",
        f"Can you {verb} the {noun}",
        f"{capitalized(verb)} {with_article(noun)}",
    )
    asks = tuple(f"{head} {tail}{'?' if head.startswith('Can') else '.'}" for head in heads for tail in tails)
    abouts = (
        f"To {verb} {with_article(noun)}.",
        f"Can {verb} the {noun}.",
        f"{capitalized(verb)} a thing.",
        f"A {noun} service.",
    )
    thing = _joined(noun)
    names = (f"{verb}_{thing}", verb, thing, f"{thing}_{verb}", f"do_{verb}", f"{verb}_it")
    return asks, rng.choice(abouts), names


def _joined(noun: str) -> str:
    return noun.replace(" ", "_").replace("'", "")


def _parameters(rng: random.Random) -> tuple[list[Parameter], list[str]]:
    """Parameters with names of their own, and how each is said; the same words never introduce two."""
    parameters: list[Parameter] = []
    phrases: list[str] = []
    taken: set[str] = set()
    for kind, said, names in rng.sample(_roles(), rng.choice((1, 1, 2, 2, 2, 3, 3, 4))):
        name = invented_name(rng).lower() if rng.random() < 0.12 else rng.choice(names)
        lead = said.split("{")[0]
        if name in taken or lead in taken or kind in taken:
            continue
        taken |= {name, lead, kind}
        article, _, after = said.partition("{")[2].partition("}")
        slot = {"a": "a ", "the": "", "": ""}[article]
        phrases.append(f"{lead}{'the ' if article == 'the' else ''}{{{slot}{name}}}{after}")
        parameters.append(Parameter(name, name, kind, optional=False))
    return parameters, phrases
