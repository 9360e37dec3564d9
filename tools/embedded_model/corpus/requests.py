"""Requests for stories in a chat, and questions about the story that was just told."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tools.embedded_model.corpus.cast import given_name, invented_name
from tools.embedded_model.corpus.quizzes import Exchange
from tools.embedded_model.corpus.scene import Scene, Wishes
from tools.embedded_model.corpus.stories import Story, tell_story
from tools.embedded_model.corpus.template import capitalized, with_article
from tools.embedded_model.corpus.wordlists import fields, words

_KINDS: Final = ("girl", "boy", "robot")


def story_request(rng: random.Random) -> tuple[str, Wishes]:
    """A request such as "Tell me a story about a fox and a lamp." and what it wishes for."""
    kind = rng.choice(words("animals")) if rng.random() < 0.6 else rng.choice((*_KINDS, *words("workers")))
    gender = {"girl": "she", "boy": "he"}.get(kind, rng.choice(("she", "he")))
    kind = invented_name(rng).lower() if rng.random() < 0.06 else kind
    name, thing = given_name(rng, gender, 0.4), rng.choice(words("things"))
    thing = invented_name(rng).lower() if rng.random() < 0.12 else thing
    place = rng.choice(fields("outdoor_places") + fields("indoor_places"))
    ask = rng.choice(
        (
            "Tell me a story",
            "Tell me a story",
            "Write a story",
            "Write a short story",
            "Can you tell me a story",
        )
    )
    hero, object_ = with_article(kind), with_article(thing)
    about, wishes = rng.choice(
        (
            ("", Wishes()),
            (f" about {hero}", Wishes(kind=kind)),
            (f" about {hero} and {object_}", Wishes(kind=kind, thing=thing)),
            (f" about {hero} and {object_}", Wishes(kind=kind, thing=thing)),
            (f" about {hero} with {object_}", Wishes(kind=kind, thing=thing)),
            (f" about {hero} named {name}", Wishes(kind=kind, name=name)),
            (f" about {hero} named {name} and {object_}", Wishes(kind=kind, name=name, thing=thing)),
            (f" about {object_}", Wishes(thing=thing)),
            (f" about {hero} {place[1]}", Wishes(kind=kind, place=place[0])),
            (f" that happens {place[1]}", Wishes(place=place[0])),
        )
    )
    end = "?" if ask.startswith("Can") else rng.choice((".", ".", ", please.", ""))
    return ask + about + end, wishes


def told_story(rng: random.Random) -> tuple[Exchange, Story]:
    """A request and the story that answers it."""
    asked, wishes = story_request(rng)
    story = next(story for story in _tries(rng, wishes) if _grants(story, wishes))
    titled = rng.random() < 0.1
    return (asked + " Give it a title.", f"{story.title}\n\n{story.text}") if titled else (
        asked,
        story.text,
    ), story


def _tries(rng: random.Random, wishes: Wishes) -> Iterator[Story]:
    while True:
        yield tell_story(rng, wishes)


def _grants(story: Story, wishes: Wishes) -> bool:
    return all(wish in story.text for wish in (wishes.kind, wishes.name, wishes.thing, wishes.place))


def continuation(rng: random.Random) -> tuple[Exchange, Story]:
    """A story's first sentence to continue, and the rest of it; also the whole story."""
    story = tell_story(rng)
    first = story.first_sentence
    ask = rng.choice(("Continue: ", "Continue this story: ", "How does this story go on? ", "Go on: "))
    return (ask + first, story.text[len(first) :].strip()), story


def recall(scene: Scene, rng: random.Random) -> Exchange:
    """A question about the story just told, answered from its scene."""
    hero, friend, slots = scene.hero, scene.friend, scene.slots
    return rng.choice(
        (
            ("Who was the hero of the story?", f"The hero was {hero.name}."),
            (f"Who was {hero.name}?", f"{hero.name} was {with_article(hero.kind)}."),
            (f"What kind of creature was {hero.name}?", f"{hero.name} was {with_article(hero.kind)}."),
            (
                f"Who was {friend.name}?",
                f"{friend.name} was {with_article(friend.kind)}, a friend of {hero.name}.",
            ),
            ("Who was the friend in the story?", f"{friend.name} was the friend of {hero.name}."),
            ("Give the story a title.", f"{hero.name} and {friend.name}"),
            (f"Where did {hero.name} live?", f"{hero.name} lived {slots['home']}."),
            ("What did you like about it?", f"I liked that {hero.name} and {friend.name} helped each other."),
            ("What can we learn from it?", f"We can learn that {slots['moral']}."),
            (
                "Make a JSON record of the hero.",
                f'{{"name": "{hero.name}", "kind": "{hero.kind}", "friend": "{friend.name}"}}',
            ),
        )
    )


def another(rng: random.Random) -> tuple[Exchange, Story]:
    """A request for one more story with a new hero."""
    story = tell_story(rng)
    ask = rng.choice(
        ("Tell me another one.", "Another story, please.", "One more!", "Can you tell me a different story?")
    )
    lead = rng.choice(("", "", "Of course. ", "Gladly. "))
    return (ask, capitalized(lead + story.text)), story
