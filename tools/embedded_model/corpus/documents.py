"""The corpus: document number i of a split is a pure function of (seed, split, i), so any process can make any part."""

from __future__ import annotations

import random
import re
from typing import Final, Literal

import attrs

from tools.embedded_model.corpus.chats import Turn, conversation
from tools.embedded_model.corpus.messages import Message, Talk, assistant, user
from tools.embedded_model.corpus.quizzes import draw_quiz
from tools.embedded_model.corpus.records import records_document
from tools.embedded_model.corpus.scene import Scene
from tools.embedded_model.corpus.stories import Story, tell_story
from tools.embedded_model.corpus.thoughts import PUZZLES, draw_thought, planned_story, remembered
from tools.embedded_model.corpus.tool_talks import SYSTEMS, extraction, tool_talk

Split = Literal["train", "held_out"]
Course = Literal["texts", "tools"]
"""The order of training: first texts and chats alone, then these and tools, thinking and puzzles."""
SEED: Final = 20_260
HELD_OUT_EVERY: Final = 20
BOS: Final = "<|bos|>"
EOS: Final = "<|end|>"
_MIXTURES: Final = {
    "texts": {"story": 45, "chat": 45, "records": 7, "facts": 3},
    "tools": {"story": 12, "chat": 20, "records": 4, "facts": 2, "tools": 44, "thought": 14, "extraction": 4},
}
_SENTENCE_END: Final = re.compile(r"(?<=[a-z]\.)\s+")


@attrs.frozen
class Document:
    """A raw text (no turns) or a conversation (no text)."""

    text: str
    turns: tuple[Turn, ...]

    def rendered(self) -> str:
        """The document with its special tokens, the very string that the chat template renders."""
        if not self.turns:
            return f"{BOS}{self.text}{EOS}"
        return BOS + "".join(f"<|{role}|>{content}{EOS}" for role, content in self.turns)


def belongs(scene: Scene, split: Split) -> bool:
    """True if a scene is in a split: one combination in `HELD_OUT_EVERY` is never trained on."""
    return (scene.key % HELD_OUT_EVERY == 0) == (split == "held_out")


def document(index: int, split: Split = "train", seed: int = SEED, course: Course = "texts") -> Document:
    """Make document `index` of a split and course; draws again until all its stories belong to the split."""
    rng = random.Random(
        f"{seed}/{split}/{index}" if course == "texts" else f"{seed}/{course}/{split}/{index}"
    )
    mixture = _MIXTURES[course]
    kind = rng.choices(tuple(mixture), weights=tuple(mixture.values()))[0]
    while True:
        made, scenes = _draw(kind, rng)
        if all(belongs(scene, split) for scene in scenes):
            return made


def _from_the_middle(text: str, rng: random.Random) -> str:
    """A story from some later sentence on, so that a prompt may be any sentence and not only an opening."""
    starts = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[rng.choice(starts) :]


def _draw(kind: str, rng: random.Random) -> tuple[Document, list[Scene]]:
    if kind in {"chat", "tools", "thought"}:
        turns, told = _drawn_turns(kind, rng)
        return Document("", tuple(turns)), [story.scene for story in told]
    if kind == "extraction":
        asked, answer = extraction(rng)
        return Document("", (("user", asked), ("assistant", answer))), []
    if kind == "records":
        return Document(records_document(rng), ()), []
    if kind == "facts":
        lines = (draw_quiz(rng) for _ in range(rng.randint(2, 8)))
        return Document("\n".join(answer for _, answer in lines), ()), []
    stories = [tell_story(rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 3)))]
    titled = len(stories) > 1 or rng.random() < 0.2
    if len(stories) == 1 and rng.random() < 0.1:
        return Document(_from_the_middle(stories[0].text, rng), ()), [stories[0].scene]
    text = "\n\n".join(f"{story.title}\n\n{story.text}" if titled else story.text for story in stories)
    return Document(text, ()), [story.scene for story in stories]


def _drawn_turns(kind: str, rng: random.Random) -> tuple[list[Turn], list[Story]]:
    if kind == "chat":
        return conversation(rng)
    talk, told = tool_talk(rng) if kind == "tools" else _thoughtful_talk(rng)
    return talk.turns(), told


def _thoughtful_talk(rng: random.Random) -> tuple[Talk, list[Story]]:
    """Up to two easy questions, then one that is thought over; a puzzle may be answered at once, too."""
    messages: list[Message] = (
        [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.2 else []
    )
    told: list[Story] = []
    draw, thinks = rng.random(), True
    earlier = [draw_quiz(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    if draw < 0.12:
        thought, story = planned_story(rng)
        told.append(story)
    elif draw < 0.24:
        before, thought, recalled = remembered(rng)
        earlier = [*before, *earlier]
        told += [recalled] if recalled is not None else []
    elif draw < 0.40:
        thought, thinks = rng.choice(PUZZLES)(rng), False
    else:
        thought = draw_thought(rng)
    for asked, answer in earlier:
        messages += [user(asked), assistant(answer)]
    messages += [user(thought.question), assistant(thought.answer, thought.thought if thinks else "")]
    return Talk(messages), told
