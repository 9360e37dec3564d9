"""Conversations: an optional system prompt and one to eight exchanges that remember what was said."""

from __future__ import annotations

import random
from typing import Final

import attrs

from tools.embedded_model.corpus.cast import given_name
from tools.embedded_model.corpus.quizzes import Exchange, draw_quiz
from tools.embedded_model.corpus.records import draw_record, request
from tools.embedded_model.corpus.requests import another, continuation, recall, told_story
from tools.embedded_model.corpus.stories import Story

Turn = tuple[str, str]
_SELF: Final = (
    "I am a very small language model that comes with nanoserve. I can tell stories, answer easy questions and write JSON.",
    "I am the small model in the nanoserve box. Ask me for a story, a small sum or a JSON record.",
)
_PLAIN_SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a storyteller.",
    "Be kind and brief.",
    "You are a helpful assistant. Answer clearly.",
    "You tell stories to children.",
    "You are nanoserve's small model.",
)
_JSON_SYSTEMS: Final = (
    "Answer only with JSON.",
    "You write JSON records. Answer with JSON only.",
    "Reply in JSON.",
)
_HELLOS: Final = (
    "Hello",
    "Hi",
    "Hello!",
    "Hi there!",
    "Hey",
    "Good morning",
    "Good evening!",
    "Hello, how are you?",
    "Hi! How are you?",
)
_THANKS: Final = (
    "Thank you!",
    "Thanks!",
    "Thank you, that was nice.",
    "Great, thanks.",
    "That was a good answer.",
    "Well done!",
)
_BYES: Final = ("Goodbye!", "Bye!", "See you tomorrow.", "Good night!")


@attrs.define
class Conversation:
    """A conversation in the making: the assistant's name, the user's name once told, the story told last."""

    rng: random.Random
    assistant_name: str = ""
    user_name: str = ""
    story: Story | None = None
    told: list[Story] = attrs.field(factory=list)

    def story_exchange(self) -> Exchange:
        """A new story, one more, or the rest of one that the user began."""
        again = self.story is not None and self.rng.random() < 0.5
        ask = (
            another
            if again
            else self.rng.choice((told_story, told_story, told_story, told_story, continuation))
        )
        exchange, self.story = ask(self.rng)
        self.told.append(self.story)
        return exchange

    def small_talk(self) -> Exchange:
        """Greetings, thanks, names and the question who is speaking."""
        draw = self.rng.random()
        if draw < 0.3:
            return self.names()
        if draw < 0.5:
            return self.rng.choice(
                (
                    "Who are you?",
                    "What are you?",
                    "What can you do?",
                    "Hello! Who are you?",
                    "Who am I talking to?",
                    "Tell me about yourself.",
                )
            ), self.introduction()
        if draw < 0.75:
            return self.rng.choice(_THANKS), self.rng.choice(
                (
                    "You are welcome!",
                    "I am glad that you liked it.",
                    "You are welcome. What next?",
                    "My pleasure!",
                )
            )
        return self.rng.choice(_HELLOS), self.rng.choice(
            (
                "Hello! What can I do for you?",
                "Hello! Would you like to hear a story?",
                "Hi! I am fine. How can I help you?",
                "Good day! What would you like to know?",
            )
        )

    def introduction(self) -> str:
        """Who the assistant says it is; a name given by the system prompt is used."""
        own = self.rng.choice(_SELF)
        return f"My name is {self.assistant_name}. {own}" if self.assistant_name else own

    def names(self) -> Exchange:
        """Telling and asking names."""
        if self.rng.random() < 0.35:
            answer = (
                f"My name is {self.assistant_name}."
                if self.assistant_name
                else "I have no name. I am the small model of nanoserve."
            )
            return "What is your name?", answer
        if self.user_name:
            return self.rng.choice(
                ("What is my name?", "Do you remember my name?", "Who am I?")
            ), f"Your name is {self.user_name}."
        if self.rng.random() < 0.15:
            return "What is my name?", "You have not told me your name yet."
        self.user_name = given_name(self.rng, self.rng.choice(("she", "he")), 0.6)
        told = self.rng.choice(
            ("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I'm {}.", "You can call me {}.")
        )
        return told.format(
            self.user_name
        ), f"{self.rng.choice(('Nice to meet you', 'Hello', 'Pleased to meet you'))}, {self.user_name}!"

    def exchange(self) -> Exchange:
        """The next question and its answer."""
        draw = self.rng.random()
        if self.story is not None and draw < 0.3:
            return recall(self.story.scene, self.rng)
        if self.user_name and draw < 0.4:
            return "What is my name?", f"Your name is {self.user_name}."
        draw = self.rng.random()
        if draw < 0.36:
            return self.story_exchange()
        if draw < 0.62:
            return draw_quiz(self.rng)
        return request(draw_record(self.rng), self.rng) if draw < 0.80 else self.small_talk()


def conversation(rng: random.Random) -> tuple[list[Turn], list[Story]]:
    """Draw a conversation: its turns as (role, content), and the stories told in it."""
    state = Conversation(rng)
    turns: list[Turn] = []
    draw = rng.random()
    only_json = draw < 0.07
    if only_json:
        turns.append(("system", rng.choice(_JSON_SYSTEMS)))
    elif draw < 0.20:
        state.assistant_name = given_name(rng, rng.choice(("she", "he")), 0.4)
        turns.append(
            (
                "system",
                rng.choice(
                    (
                        "You are {}.",
                        "Your name is {}.",
                        "You are {}, a helpful assistant.",
                        "Your name is {}. Be kind.",
                    )
                ).format(state.assistant_name),
            )
        )
    elif draw < 0.45:
        turns.append(("system", rng.choice(_PLAIN_SYSTEMS)))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 3, 4, 5, 8))):
        asked, answer = request(draw_record(rng), rng) if only_json else state.exchange()
        turns += [("user", asked), ("assistant", answer)]
    if rng.random() < 0.06:
        turns += [
            ("user", rng.choice(_BYES)),
            ("assistant", rng.choice(("Goodbye!", "Goodbye! Come back soon.", "See you!"))),
        ]
    return turns, state.told
