"""A scene: every choice a story makes once and keeps, so that hero, thing and place stay the same to the end."""

from __future__ import annotations

import random
from typing import Final
from zlib import crc32

import attrs

from tools.embedded_model.corpus.cast import Character, character, elder
from tools.embedded_model.corpus.template import Slot, Template, render
from tools.embedded_model.corpus.wordlists import calendar, fields, morals, plots, words

_LISTS: Final = {"animal": "animals", "color": "colors", "thing": "things", "worker": "workers"}
_OUTDOORS: Final = frozenset({"journey", "storm", "treasure", "fear", "promise"})


@attrs.frozen
class Wishes:
    """A reader's wishes for a story; empty strings leave the choice open."""

    kind: str = ""
    name: str = ""
    thing: str = ""
    place: str = ""


@attrs.define
class Scene:
    """The fixed facts of one story and the slots that its templates read."""

    plot: str
    hero: Character
    friend: Character
    slots: dict[str, str]
    introduced: set[str] = attrs.field(factory=set)

    @property
    def key(self) -> int:
        """A number that stays the same for the same cast, thing and place; splits are made by it."""
        parts = (self.hero.name, self.friend.kind, self.slots["thing"], self.slots["place"])
        return crc32("/".join(parts).encode())

    def tell(self, template: Template, rng: random.Random) -> str:
        """Render a template with this scene's slots."""

        def value_of(slot: Slot) -> str:
            if slot.fresh:
                return self._fresh(slot.name, rng)
            if slot.name in {"hero", "friend", "friend_intro"}:
                return self._mention(slot.name, rng)
            return self.slots[slot.name]

        return render(template, rng, value_of)

    def _fresh(self, name: str, rng: random.Random) -> str:
        taken = {self.hero.kind, self.friend.kind, self.slots["thing"], self.slots["worker"]}
        while (word := rng.choice(words(_LISTS[name]))) in taken:
            pass
        return word

    def _mention(self, name: str, rng: random.Random) -> str:
        if name == "hero":
            return rng.choice(self.hero.mentions)
        if name == "friend_intro" and name not in self.introduced:
            self.introduced.add(name)
            return self.friend.intro
        return rng.choice(self.friend.mentions)


def draw_scene(rng: random.Random, wishes: Wishes | None = None) -> Scene:
    """Draw a scene that grants the wishes."""
    wishes = wishes or Wishes()
    hero = character(rng, kind=wishes.kind, name=wishes.name)
    friend = _friend_of(hero, rng)
    plot = rng.choice(plots())
    slots = {
        "kind": hero.kind,
        "hero_name": hero.name,
        "hero_intro": hero.intro,
        "hero_noun": hero.noun,
        "friend_name": friend.name,
    }
    slots |= _pronouns(hero, "") | _pronouns(friend, "f")
    slots |= _elder(rng, hero.kind) | _things(rng, wishes.thing) | _places(rng, plot, wishes.place)
    slots |= _when(rng) | _rest(rng, hero.kind) | {"moral": rng.choice(morals(plot))}
    return Scene(plot, hero, friend, slots)


def _friend_of(hero: Character, rng: random.Random) -> Character:
    others = [gender for gender in ("she", "he") if gender != hero.pronouns[0]]
    gender = rng.choice(others) if rng.random() < 0.75 else ""
    while True:
        friend = character(rng, gender=gender)
        if friend.kind != hero.kind and friend.name != hero.name:
            return friend


def _pronouns(who: Character, prefix: str) -> dict[str, str]:
    return {
        prefix + form: word for form, word in zip(("he", "him", "his", "himself"), who.pronouns, strict=True)
    }


def _elder(rng: random.Random, kind: str) -> dict[str, str]:
    who = elder(rng, kind)
    return {"elder": who.name, **_pronouns(who, "e")}


def _things(rng: random.Random, wish: str) -> dict[str, str]:
    thing, second, third = rng.sample(words("things"), 3)
    thing, color = wish or thing, rng.choice(words("colors"))
    look = rng.choice(words("looks"))
    described = rng.choice((f"{look} {color} {thing}", f"{color} {thing}", f"{look} {thing}"))
    color2 = rng.choice([other for other in words("colors") if other != color])
    slots = {"thing": thing, "thing_adj": described, "thing2": second, "thing3": third, "color": color}
    return slots | {"color2": color2}


def _places(rng: random.Random, plot: str, wish: str) -> dict[str, str]:
    outdoors = plot in _OUTDOORS or rng.random() < 0.65
    rows = fields("outdoor_places" if outdoors else "indoor_places")
    wished = [row for row in fields("outdoor_places") + fields("indoor_places") if row[0] == wish]
    place, at, to = (wished or [rng.choice(rows)])[0]
    outdoors = any(row[0] == place for row in fields("outdoor_places"))
    spots = rng.sample(words("outdoor_spots" if outdoors else "indoor_spots"), 3)
    return {"place": place, "at": at, "to": to, "spot": spots[0], "spot2": spots[1], "spot3": spots[2]}


def _when(rng: random.Random) -> dict[str, str]:
    times, skies = rng.choice(calendar())
    time, sky = rng.choice(times), rng.choice(skies)
    part_of_day = "evening" if "evening" in time else "day"
    plain = rng.choice((f"{time}, ", f"{time}, ", f"{time}, {sky}. That {part_of_day}, "))
    night = rng.choice(
        ("one night, ", "late one night, ", "one dark night, ", "in the middle of the night, ")
    )
    return {"time_plain": plain, "time_night": night, "time": time, "sky": sky}


def _rest(rng: random.Random, kind: str) -> dict[str, str]:
    skill, skilling = rng.choice(fields("skills"))
    contest, the_contest = rng.choice(fields("contests"))
    food, food2 = rng.sample(words("foods"), 2)
    trait, trait2 = rng.sample(words("traits"), 2)
    one_of = {"worker": "workers", "animal": "animals"}
    others = {
        slot: rng.choice([word for word in words(name) if word != kind]) for slot, name in one_of.items()
    }
    lists = {"home": "homes", "fear": "fears", "prize": "prizes", "seed": "seeds", "garden": "gardens"}
    lists |= {"town": "towns", "small_animal": "small_animals", "hobby": "hobbies"}
    drawn = {slot: rng.choice(words(name)) for slot, name in lists.items()}
    own = {"skill": skill, "skilling": skilling, "contest": contest, "the_contest": f"the {the_contest}"}
    own |= {"food": food, "food2": food2, "trait": trait, "trait2": trait2}
    return others | drawn | own
