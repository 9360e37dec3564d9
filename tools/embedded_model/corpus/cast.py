"""The characters of a story: names, kinds, and the pronouns that agree with them."""

from __future__ import annotations

import random
from typing import Final

import attrs

from tools.embedded_model.corpus.template import with_article
from tools.embedded_model.corpus.wordlists import fields, words

SHE: Final = ("she", "her", "her", "herself")
HE: Final = ("he", "him", "his", "himself")
IT: Final = ("it", "it", "its", "itself")
PRONOUNS: Final = {"she": SHE, "he": HE, "it": IT}
_VOWELS: Final = "aeiou"
_CONSONANTS: Final = (
    "b",
    "d",
    "f",
    "g",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "th",
    "sh",
    "st",
    "br",
    "ck",
)
_CHILD: Final = {"she": "girl", "he": "boy"}


@attrs.frozen
class Character:
    """Somebody in a story: `noun` is "small fox", `intro` "a small fox named Felix", `mentions` are later references."""

    name: str
    kind: str
    pronouns: tuple[str, str, str, str]
    noun: str
    intro: str
    mentions: tuple[str, ...]


def invented_name(rng: random.Random) -> str:
    """A made-up name, so that a model learns to copy names that it has never seen."""
    if rng.random() < 0.5:
        return "".join(rng.choice(words("syllables")) for _ in range(rng.choice((2, 2, 3)))).capitalize()
    letters = (rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
    spoken = "".join(letters) + rng.choice((*_CONSONANTS, "", "", ""))
    return (rng.choice(_VOWELS) + spoken if rng.random() < 0.3 else spoken).capitalize()


def given_name(rng: random.Random, gender: str, invented: float = 0.12) -> str:
    """A first name of the gender ("she" or "he"; "it" takes either list), `invented` of the time made up."""
    if rng.random() < invented:
        return invented_name(rng)
    girls = gender == "she" or (gender == "it" and rng.random() < 0.5)
    return rng.choice(words("girls" if girls else "boys"))


def character(rng: random.Random, *, kind: str = "", name: str = "", gender: str = "") -> Character:
    """Draw a character; what is given is kept, the rest is drawn to agree with it."""
    kind = kind or _kind(rng)
    gender = gender or {"girl": "she", "boy": "he", "robot": "it"}.get(kind) or rng.choice(("she", "he"))
    if kind == "child":
        kind = _CHILD[gender]
    name = name or given_name(rng, gender)
    trait = rng.choice(words("traits"))
    size = rng.choice(("little", "small", "young", "tall", "", ""))
    adjectives = rng.choice((size, trait, f"{trait} {size}", "")).split()
    noun = " ".join((*dict.fromkeys(adjectives), kind))
    linking = rng.choice(("named", "named", "called", "by the name of"))
    child = kind in _CHILD.values() or kind == "robot"
    mentions = (name, name, name) if child else (name, name, name, f"the {kind}")
    return Character(name, kind, PRONOUNS[gender], noun, f"{with_article(noun)} {linking} {name}", mentions)


def _kind(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.42:
        return "child"
    if draw < 0.82:
        return rng.choice(words("animals"))
    return "robot" if draw < 0.86 else rng.choice(words("workers"))


def elder(rng: random.Random, avoid: str) -> Character:
    """An older person who gives advice and presents; never of the kind `avoid`."""
    rows = [row for row in fields("elders") if avoid not in row[0]]
    name, gender, *_ = rng.choice(rows)
    return Character(name, name, PRONOUNS[gender], name, name, (name,))
