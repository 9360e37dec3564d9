"""Random constraints and seeds: every answer that comes to its end is valid, whatever happens around it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams
from tests.served import Answer, Served
from tests.unit.adapters.llguidance.schemas import random_schema
from tests.unit.adapters.llguidance.vocabularies import (
    END,
    PADDED,
    allowed,
    byte_level,
    compiled,
    error_of,
    grammars_of,
    plain,
)

LONGEST = 400


def is_valid(schema: Any, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_whatever_masks_allow_is_valid(first: int) -> None:
    """A model that draws any allowed token with the same chance, of a vocabulary with merges."""
    tokenizer = plain()
    grammars, (end,) = grammars_of(tokenizer), tokenizer.encode(END, add_special_tokens=False).ids[-1:]
    num_ended = 0
    for seed in range(first, first + 60):
        draw = random.Random(seed)
        schema = random_schema(draw)
        matcher = compiled(grammars, "json_schema", json.dumps(schema), compact=seed % 2 == 0)
        said: list[int] = []
        while len(said) < LONGEST and not (matcher.may_end() and draw.random() < 0.5):
            choices = sorted(allowed(grammars, matcher) - {end})
            if not choices:
                break
            said.append(draw.choice(choices))
            assert not grammars.consume([(matcher, said[-1])])
            assert not error_of(grammars, matcher)
        if matcher.may_end():
            num_ended += 1
            assert is_valid(schema, tokenizer.decode(said)), (schema, tokenizer.decode(said))
        else:
            assert len(said) == LONGEST, (schema, tokenizer.decode(said))
    assert num_ended > 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    """Random weights, and logits that are wider than the vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    width = byte_level().get_vocab_size() + PADDED
    config = LlamaConfig(
        vocab_size=width,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    spec = read_spec(str(folder))
    return build_model(spec, str(folder), dtype=torch.float32, device=torch.device("cpu"))


def answers(
    model: DecoderModel,
    schemas: list[Any],
    *,
    depth: int,
    num_blocks: int,
    grammars: LLGrammars | None = None,
    rows: int = 6,
) -> list[Answer]:
    """One of each schema, and as many free ones between them."""
    served = Served(
        model,
        lambda limits: TorchRunner(model, limits),
        depth=depth,
        num_blocks=num_blocks,
        block_size=8,
        max_model_len=256,
        max_num_seqs=rows,
        grammars=grammars or grammars_of(byte_level()),
    )
    end = byte_level().token_to_id(END)
    found: dict[str, Answer] = {}
    for number, schema in enumerate(schemas):
        params = SamplingParams(temperature=1.2, max_tokens=180)
        constraint = None if schema is None else Constraint("json_schema", json.dumps(schema), whitespace="")
        prompt = [(5 * number + each) % 200 for each in range(1 + number % 7)]
        served.add(str(number), prompt, params, number, eos_token_ids={end}, constraint=constraint)
        found[str(number)] = Answer()
    while served.engine.has_work:
        served.turn(found)
    assert served.has_preempted or num_blocks >= 100  # some may also make way before they have a grammar
    assert grammars is None or served.engine.state().late_masks
    assert not served.engine.scheduler.constraints.matchers
    return list(found.values())


def test_answers_of_a_model_are_valid_and_the_same_at_any_depth_preempted_or_not(model: DecoderModel) -> None:
    schemas = [None if seed % 6 == 5 else random_schema(random.Random(seed)) for seed in range(40)]
    tokenizer = byte_level()
    first = answers(model, schemas, depth=2, num_blocks=300)
    num_ended = 0
    for schema, answer in zip(schemas, first, strict=True):
        if schema is not None and answer.finish_reason is not FinishReason.LENGTH:
            assert answer.finish_reason is FinishReason.STOP
            assert is_valid(schema, tokenizer.decode(answer.tokens[:-1])), schema
            num_ended += 1
    assert num_ended > 20
    assert answers(model, schemas, depth=1, num_blocks=300) == first
    assert answers(model, schemas, depth=2, num_blocks=60) == first


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_ten_thousand_answers_are_valid_unless_they_are_cut(model: DecoderModel, first: int) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(first, first + 500)]
    tokenizer, num_ended = byte_level(), 0
    for schema, answer in zip(
        schemas, answers(model, schemas, depth=2, num_blocks=1100, rows=32), strict=True
    ):
        if answer.finish_reason is not FinishReason.LENGTH:
            assert answer.finish_reason is FinishReason.STOP
            assert is_valid(schema, tokenizer.decode(answer.tokens[:-1])), schema
            num_ended += 1
    assert num_ended > 250


def test_several_answers_of_one_request_share_its_grammar(model: DecoderModel) -> None:
    grammars, tokenizer = grammars_of(byte_level()), byte_level()
    schema = {"type": "string", "maxLength": 5}
    served = Served(model, lambda limits: TorchRunner(model, limits), depth=2, grammars=grammars)
    params = SamplingParams(temperature=1.2, max_tokens=60, n=3)
    constraint = Constraint("json_schema", json.dumps(schema))
    served.add("r", [1, 2], params, 0, eos_token_ids={tokenizer.token_to_id(END)}, constraint=constraint)
    said: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while served.engine.has_work:
        for event in served.engine.turn():
            if isinstance(event, TokensGenerated):
                said[event.index] += event.token_ids
    assert all(is_valid(schema, tokenizer.decode(each[:-1])) for each in said.values())
    assert len({tuple(each) for each in said.values()}) == 3
    assert grammars.counts().compiles == 1


def test_late_masks_change_no_answer(model: DecoderModel) -> None:
    """Without patience many are, the first ones of most answers among them."""
    schemas = [random_schema(random.Random(seed)) for seed in range(12)]
    hasty = grammars_of(byte_level(), workers=2)
    hasty.patience = 0.0
    hurried = answers(model, schemas, depth=2, num_blocks=300, grammars=hasty)
    assert hurried == answers(model, schemas, depth=2, num_blocks=300)
