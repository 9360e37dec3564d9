"""The corpus: document number i of a split is a pure function of (seed, split, i), so any process can make any part."""

from __future__ import annotations

import random
import re
from typing import Final, Literal

import attrs

from tools.embedded_model.corpus.chats import Turn, conversation
from tools.embedded_model.corpus.quizzes import draw_quiz
from tools.embedded_model.corpus.records import records_document
from tools.embedded_model.corpus.scene import Scene
from tools.embedded_model.corpus.stories import tell_story

Split = Literal["train", "held_out"]
SEED: Final = 20_260
HELD_OUT_EVERY: Final = 20
BOS: Final = "<|bos|>"
EOS: Final = "<|end|>"


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
    """Whether a scene is in a split: one combination in `HELD_OUT_EVERY` is never trained on."""
    return (scene.key % HELD_OUT_EVERY == 0) == (split == "held_out")


def document(index: int, split: Split = "train", seed: int = SEED) -> Document:
    """Make document `index` of a split; draws again until all its stories belong to the split."""
    rng = random.Random(f"{seed}/{split}/{index}")
    kind = rng.choices(("story", "chat", "records", "facts"), weights=(45, 45, 7, 3))[0]
    while True:
        made, scenes = _draw(kind, rng)
        if all(belongs(scene, split) for scene in scenes):
            return made


def _from_the_middle(text: str, rng: random.Random) -> str:
    """A story from some later sentence on, so that a prompt may be any sentence and not only an opening."""
    starts = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[rng.choice(starts) :]


def _draw(kind: str, rng: random.Random) -> tuple[Document, list[Scene]]:
    if kind == "chat":
        turns, told = conversation(rng)
        return Document("", tuple(turns)), [story.scene for story in told]
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
