"""Stories: an opening, one plot told beat by beat, and an ending, all in one scene."""

from __future__ import annotations

import random

import attrs

from tools.embedded_model.corpus.scene import Scene, Wishes, draw_scene
from tools.embedded_model.corpus.template import capitalized
from tools.embedded_model.corpus.wordlists import beats


@attrs.frozen
class Story:
    """A told story: its title, its text, its first sentence, and the scene it came from."""

    title: str
    text: str
    scene: Scene

    @property
    def first_sentence(self) -> str:
        """The text up to and including its first full stop."""
        return self.text[: self.text.index(". ") + 1]


def tell_story(rng: random.Random, wishes: Wishes | None = None) -> Story:
    """Tell one story of about 100 to 250 words."""
    scene = draw_scene(rng, wishes)
    paragraphs: list[list[str]] = [[]]
    separated = rng.random() < 0.6
    opening = "opening_in_time" if rng.random() < 0.2 else "opening"
    for part in (opening, scene.plot, "ending"):
        for starts_paragraph, alternatives in beats(part):
            if starts_paragraph and separated:
                paragraphs.append([])
            sentence = scene.tell(rng.choice(alternatives), rng)
            if sentence:
                paragraphs[-1].append(sentence.strip())
            if part == "opening_in_time" and sentence.startswith(capitalized(scene.slots["time"])):
                scene.slots["time_plain"] = rng.choice(("that day, ", "that same day, ", "soon after, "))
    return Story(_title(scene, rng), "\n\n".join(" ".join(lines) for lines in paragraphs), scene)


def _title(scene: Scene, rng: random.Random) -> str:
    hero, friend = scene.hero.name, scene.friend.name
    thing = scene.slots["thing"].title()
    titles = (f"{hero} and the {thing}", f"{hero} and {friend}", f"The {thing}", f"{hero}'s {thing}")
    return capitalized(rng.choice(titles))
