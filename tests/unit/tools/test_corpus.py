"""The corpus generator: the same seed gives the same text, splits don't mix, and all text is well formed."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nanoserve.adapters.embedded import model_folder
from tools.embedded_model.corpus.documents import belongs, document
from tools.embedded_model.corpus.quizzes import arithmetic, draw_quiz
from tools.embedded_model.corpus.records import draw_record, records_document, request
from tools.embedded_model.corpus.requests import told_story
from tools.embedded_model.corpus.scene import Wishes, draw_scene
from tools.embedded_model.corpus.stories import tell_story
from tools.embedded_model.corpus.template import parse, with_article
from tools.embedded_model.corpus.wordlists import beats, plots
from tools.embedded_model.recipe import STAGES, Recipe
from tools.embedded_model.rows import pack_shard

SEEDS = st.integers(min_value=0, max_value=2**32)


def test_a_document_is_a_function_of_its_number_and_seed() -> None:
    first = [document(index).rendered() for index in range(50)]
    assert [document(index).rendered() for index in reversed(range(50))] == first[::-1]
    assert [document(index, seed=1).rendered() for index in range(50)] != first
    assert [document(index, "held_out").rendered() for index in range(50)] != first


def test_a_chat_document_is_what_the_shipped_template_renders() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    chats = [made for made in map(document, range(80)) if made.turns]
    assert len(chats) > 20
    for made in chats:
        messages = [{"role": role, "content": content} for role, content in made.turns]
        assert tokenizer.apply_chat_template(messages, tokenize=False) == made.rendered()


@given(seed=SEEDS)
def test_a_story_is_clean_sentences_in_one_scene(seed: int) -> None:
    story = tell_story(random.Random(seed))
    assert re.search(r"[\[\]{}|~]|  | [.,]|\.\.|\ba [aeio]\w+\b", story.text) is None
    assert story.text.count('"') % 2 == 0
    assert story.text[0].isupper()
    assert story.text[-1] in '."!'
    assert 70 <= len(story.text.split()) <= 300
    assert story.scene.hero.name in story.text
    assert story.text.startswith(story.first_sentence)


@given(seed=SEEDS)
def test_an_asked_for_story_has_what_was_asked_for(seed: int) -> None:
    (asked, answer), story = told_story(random.Random(seed))
    assert "story" in asked
    assert story.text in answer
    if match := re.search(r"about an? (\w+) and an? ([a-z ]+?)[.,?]", asked):
        assert match[1] in answer
        assert match[2] in answer


@given(seed=SEEDS)
def test_every_record_is_valid_json_with_the_described_values(seed: int) -> None:
    rng = random.Random(seed)
    record = draw_record(rng)
    asked, answer = request(record, rng)
    assert json.loads(answer) == dict(record.fields)
    assert "JSON" in asked
    text = records_document(rng)
    parsed = (
        [json.loads(text)]
        if text.startswith(("[", "{\n"))
        else [json.loads(line) for line in text.splitlines()]
    )
    assert parsed


@given(seed=SEEDS, held_out=st.booleans())
def test_sums_are_right_and_never_cross_the_split(seed: int, held_out: bool) -> None:
    _, answer = arithmetic(random.Random(seed), held_out=held_out)
    found = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (-?\d+)\.", answer)
    assert found is not None
    a, b = int(found[1]), int(found[3])
    assert int(found[4]) == {"+": a + b, "-": a - b, "*": a * b}[found[2]]
    assert ((a * 31 + b * 17) % 10 == 0) == held_out


@given(seed=SEEDS)
def test_questions_and_answers_are_never_empty(seed: int) -> None:
    question, answer = draw_quiz(random.Random(seed))
    assert question.strip() == question != ""
    assert answer.strip() == answer != ""


@pytest.mark.parametrize("seed", range(20))
def test_a_scene_is_in_exactly_one_split_and_keeps_what_was_asked_for(seed: int) -> None:
    scene = draw_scene(random.Random(seed), Wishes(kind="fox", name="Vera", thing="lamp", place="river"))
    assert belongs(scene, "train") != belongs(scene, "held_out")
    assert (scene.hero.kind, scene.hero.name, scene.slots["thing"], scene.slots["place"]) == (
        "fox",
        "Vera",
        "lamp",
        "river",
    )
    assert scene.friend.kind != "fox"


def test_every_sentence_of_every_plot_can_be_made() -> None:
    told = 0
    for name in (*plots(), "opening", "opening_in_time", "ending"):
        for _, alternatives in beats(name):
            for alternative in alternatives:
                rng = random.Random(told)
                assert "{" not in draw_scene(rng).tell(alternative, rng)
                told += 1
    assert told > 400


@pytest.mark.parametrize(
    ("noun", "expected"),
    [("owl", "an owl"), ("unicorn", "a unicorn"), ("honest fox", "an honest fox"), ("lamp", "a lamp")],
)
def test_the_article_follows_the_sound(noun: str, expected: str) -> None:
    assert with_article(noun) == expected


@pytest.mark.parametrize("source", ["a [b|c", "a [b]] c", "a {b"])
def test_an_unbalanced_template_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="in template: a"):
        parse(source)


def test_a_shard_is_reproducible_and_begins_every_row_with_bos() -> None:
    file = model_folder() / "tokenizer.json"
    first = pack_shard(3, rows=2, length=257, split="train", tokenizer_file=file)
    again = pack_shard(3, rows=2, length=257, split="train", tokenizer_file=file)
    assert (first == again).all()
    assert first.shape == (2, 257)
    assert (first[:, 0] == 0).all()


@pytest.mark.parametrize("recipe", STAGES.values(), ids=STAGES)
def test_the_learning_rate_warms_up_and_falls_to_its_floor(recipe: Recipe) -> None:
    rates = [recipe.learning_rate(step) for step in range(recipe.steps + 1)]
    assert max(rates) == pytest.approx(recipe.peak_learning_rate)
    assert rates[0] < rates[recipe.warmup_steps]
    assert rates[-1] == pytest.approx(recipe.final_learning_rate)
