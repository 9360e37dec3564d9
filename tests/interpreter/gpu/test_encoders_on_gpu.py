"""Encoders over the GPU's runner equal transformers: every kind of pooling in one step, texts of many lengths, pairs, windows."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.ports.pooling import Pooling, PoolingKind
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.process.encoder_models import FAMILIES, TEXTS, make_encoder, run

PAIR = ("Who lives in the wood?", "The old fox is a fox.")
SETTINGS: dict[str, Any] = {"max_model_len": 120, "max_num_batched_tokens": 120, "num_blocks": 1}
MIXTURES = ([PoolingKind.FIRST], [PoolingKind.LAST, PoolingKind.FIRST], list(PoolingKind))
"""Of kinds in one step. What the runner keeps of states depends on them and on no family, so interpreted ones are tried with one."""


def load(folder: pathlib.Path) -> DecoderModel:
    return build_model(read_spec(str(folder)), str(folder), dtype=torch.float32, device=DEVICE)


@pytest.mark.parametrize("deterministic", [False, True] if ON_GPU else [False])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_those_of_transformers(
    tmp_path: pathlib.Path, family: str, *, deterministic: bool
) -> None:
    tokenizer, reference = make_encoder(tmp_path, family)
    ours = HFTokenizer(str(tmp_path))
    encoded = [*map(ours.encode_pooled, TEXTS), ours.encode_pooled(*PAIR)]
    wanted = [run(tokenizer, reference, *texts).last_hidden_state[0] for texts in (*zip(TEXTS), PAIR)]
    served = serve(load(tmp_path), deterministic=deterministic, depth=2, **SETTINGS)
    for kinds in MIXTURES if ON_GPU or family == "modernbert" else MIXTURES[-1:]:
        poolings = [
            Pooling(kind=kinds[place % len(kinds)], second=second)
            for place, (_, second) in enumerate(encoded)
        ]
        found = served.pooled([ids for ids, _ in encoded], poolings)
        for vector, states, pooling in zip(found, wanted, poolings, strict=True):
            expected = {
                PoolingKind.FIRST: states[0],
                PoolingKind.LAST: states[-1],
                PoolingKind.MEAN: states.mean(0),
                PoolingKind.ALL: states.flatten(),
            }[pooling.kind]
            assert vector == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
def test_classifiers_equal_those_of_transformers(tmp_path: pathlib.Path, kind: str) -> None:
    tokenizer, reference = make_encoder(tmp_path, "modernbert", kind, num_labels=3)
    ours = HFTokenizer(str(tmp_path))
    pooling = Pooling(kind=PoolingKind.ALL if kind == "ForTokenClassification" else PoolingKind.FIRST)
    served = serve(load(tmp_path), **SETTINGS)
    found = served.pooled([ours.encode(text) for text in TEXTS], [pooling] * len(TEXTS))
    for numbers, text in zip(found, TEXTS, strict=True):
        assert numbers == pytest.approx(run(tokenizer, reference, text).logits.flatten().tolist(), abs=1e-4)
