"""What folders in the form of sentence-transformers say of their vectors, in its present and its older files."""

from __future__ import annotations

import json
import math
import pathlib
import types
from typing import Any

import pytest

from nanoserve.adapters.huggingface.pooler import choose_pooler
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.model_spec import PooledLayer
from nanoserve.ports.pooling import Activation, PoolerSpec, Pooling, PoolingKind, Task

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
DENSE = {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}
FILES: dict[str, Any] = {
    "config.json": {"architectures": ["Qwen3ForCausalLM"]},
    "modules.json": MODULES,
    "1_Pooling/config.json": {"word_embedding_dimension": 9, "pooling_mode_lasttoken": True},
}


def write(folder: pathlib.Path, **changed: Any) -> str:
    for name, value in (FILES | changed).items():
        if value is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(folder)


def choose(task: str, folder: str, width: int, **words: list[int]) -> PoolerSpec | None:
    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return words[text]

    tokenizer: Any = types.SimpleNamespace(folder=folder, encode=encode)
    return choose_pooler(task, tokenizer, width)


def test_an_older_folder_is_read(tmp_path: pathlib.Path) -> None:
    config: dict[str, Any] = {"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": "query"}
    folder = write(tmp_path, **{"config_sentence_transformers.json": config})
    assert choose("auto", folder, 9) == PoolerSpec(
        task=Task.EMBED, width=9, normalized=True, prompts=config["prompts"], default_prompt="query"
    )
    assert choose("generate", folder, 9) is None


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, PoolingKind.MEAN),
        ({"pooling_mode_mean_tokens": True}, PoolingKind.MEAN),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, PoolingKind.FIRST),
        ({"pooling_mode": "lasttoken"}, PoolingKind.LAST),
        ({"pooling_mode": ["cls"]}, PoolingKind.FIRST),
        ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, PoolingKind.MEAN),
        ({"pooling_mode": "mean", "include_prompt": False}, PoolingKind.MEAN),
    ],
)
def test_how_states_are_pooled(tmp_path: pathlib.Path, config: dict[str, Any], kind: PoolingKind) -> None:
    folder = write(tmp_path, **{"1_Pooling/config.json": config, "modules.json": MODULES[:2]})
    found = choose("auto", folder, 9)
    assert found is not None
    assert (found.pooling, found.normalized) == (Pooling(kind=kind), False)


def test_a_folder_that_says_nothing_writes_text_unless_it_has_no_head(tmp_path: pathlib.Path) -> None:
    bare = PoolerSpec(task=Task.EMBED, normalized=True, width=5)
    folder = write(tmp_path, **{"modules.json": None})
    assert choose("auto", folder, 5) is None
    assert choose("embed", folder, 5) == bare
    write(tmp_path, **{"modules.json": None, "config.json": {"architectures": ["Qwen3Model"]}})
    assert choose("auto", folder, 5) == bare


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("modules.json", "{", "is not valid JSON"),
        ("modules.json", {}, "must hold a list of objects"),
        ("modules.json", [1], "must hold a list of objects"),
        ("modules.json", [{"path": ""}], "must have a `type` and a `path`"),
        ("modules.json", [{"type": "Pooling", "path": "../else"}], "must lie in the model's folder"),
        ("modules.json", [{"type": "Pooling", "path": "/etc"}], "must lie in the model's folder"),
        ("modules.json", MODULES[1:], "modules Pooling, Normalize are not supported"),
        ("modules.json", [*MODULES, DENSE], "modules Transformer, Pooling, Normalize, Dense are not supported"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling by 'max' is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "is not supported; known are lasttoken, mean, cls"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case must be false"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "modality_config must have no"),
        ("config_sentence_transformers.json", {"prompts": []}, None),
        ("config_sentence_transformers.json", {"prompts": [1]}, "prompts must be an object of texts"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts must be an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "b"}, "'b' is not one of its prompts"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_file_and_name(
    tmp_path: pathlib.Path, name: str, value: Any, complaint: str | None
) -> None:
    folder = write(tmp_path, **{name: value})
    if complaint is None:
        assert choose("auto", folder, 9) is not None
        return
    with pytest.raises(ModelLoadError) as caught:
        choose("auto", folder, 9)
    assert str(tmp_path / name) in str(caught.value)
    assert complaint in str(caught.value)


def test_prompts_that_do_not_count_are_refused(tmp_path: pathlib.Path) -> None:
    config = {"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False}}
    later = {"config_sentence_transformers.json": {"prompts": {"query": "Q: "}}}
    with pytest.raises(ModelLoadError, match="include_prompt must be true"):
        choose("auto", write(tmp_path, **config, **later), 9)


def test_a_vector_is_cut_before_it_is_normalized() -> None:
    spec = PoolerSpec(task=Task.EMBED, normalized=True, width=3)
    assert spec.vector((3.0, 4.0, 12.0)) == [3 / 13, 4 / 13, 12 / 13]
    assert spec.vector((3.0, 4.0, 12.0), 2) == [0.6, 0.8]
    assert spec.vector((0.0, 0.0, 0.0)) == [0.0, 0.0, 0.0]
    for wrong in (0, 4, True, 1.5):
        with pytest.raises(BadValueError, match="dimensions"):
            spec.check_dimensions(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), Activation.SOFTMAX),
        ({"id2label": {"0": "bad", "1": "good", "2": "odd"}}, ("bad", "good", "odd"), Activation.SOFTMAX),
        ({"id2label": {"0": "score"}}, ("score",), Activation.SIGMOID),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), Activation.SIGMOID),
        ({"id2label": {"0": "score"}, "problem_type": "regression"}, ("score",), Activation.NONE),
    ],
)
def test_a_classifier_has_the_classes_of_its_config(
    tmp_path: pathlib.Path, more: dict[str, Any], labels: tuple[str, ...], activation: Activation
) -> None:
    config = {"architectures": ["LlamaForSequenceClassification"], **more}
    folder = write(tmp_path, **{"modules.json": None, "config.json": config})
    layers = (PooledLayer(name="score", size=len(labels), bias=False),)
    expected = PoolerSpec(
        task=Task.CLASSIFY, width=len(labels), labels=labels, activation=activation, layers=layers
    )
    assert choose("auto", folder, 9) == choose("classify", folder, 9) == expected


def test_classes_without_order_are_refused(tmp_path: pathlib.Path) -> None:
    config = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"1": "a", "0": "b"}}
    with pytest.raises(ModelLoadError, match="id2label must name the classes"):
        choose("auto", write(tmp_path, **{"modules.json": None, "config.json": config}), 9)


def test_any_writer_of_text_reranks_if_its_words_are_tokens(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path, **{"modules.json": None})
    found = choose("rerank", folder, 9, yes=[7], no=[3])
    assert found == PoolerSpec(task=Task.RERANK, width=9, pooling=Pooling(token_ids=[3, 7]))
    with pytest.raises(ModelLoadError, match="`no` and `yes` must be tokens"):
        choose("rerank", folder, 9, yes=[7], no=[3, 4])


def test_a_model_is_not_made_for_what_its_files_contradict(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        ModelLoadError, match="--task rerank is asked for, and the model is made to embed texts"
    ):
        choose("rerank", write(tmp_path), 9, yes=[7], no=[3])
    with pytest.raises(
        ModelLoadError, match="--task classify is asked for, and the model is not made for that"
    ):
        choose("classify", write(tmp_path / "plain", **{"modules.json": None}), 9)


def test_scores_are_those_of_the_activation() -> None:
    softmax = PoolerSpec(task=Task.CLASSIFY)
    assert softmax.scores((1000.0, 1000.0)) == [0.5, 0.5]
    assert softmax.scores((0.0, math.log(3))) == pytest.approx([0.25, 0.75])
    sigmoid = PoolerSpec(task=Task.CLASSIFY, activation=Activation.SIGMOID)
    assert sigmoid.scores((0.0, -1000.0, math.log(3))) == pytest.approx([0.5, 0.0, 0.75])
    assert PoolerSpec(task=Task.CLASSIFY, activation=Activation.NONE).scores((5.0, -3.0)) == [5.0, -3.0]


ENCODER: dict[str, Any] = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 9}


def test_an_encoder_without_files_of_its_own_makes_means(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path, **{"modules.json": None, "config.json": ENCODER})
    pooling = Pooling(kind=PoolingKind.MEAN)
    expected = PoolerSpec(task=Task.EMBED, width=9, pooling=pooling, normalized=True, shorter=())
    assert choose("auto", folder, 9) == choose("embed", folder, 9) == expected
    with pytest.raises(ModelLoadError, match="an encoder writes no text"):
        choose("generate", folder, 9)


@pytest.mark.parametrize(
    ("config", "dimensions", "error"),
    [
        ({}, 3, "dimensions: must be 9: this model's vectors cannot be cut otherwise"),
        ({"is_matryoshka": True}, 3, None),
        ({"matryoshka_dimensions": [3, 5]}, 3, None),
        ({"matryoshka_dimensions": [3, 5]}, 4, "dimensions: must be 9, 3, 5: this"),
        ({"is_matryoshka": True}, 10, "dimensions: must be from 1 to 9, got 10"),
    ],
)
def test_vectors_are_cut_where_the_config_says_so(
    tmp_path: pathlib.Path, config: dict[str, Any], dimensions: int, error: str | None
) -> None:
    pooler = choose("auto", write(tmp_path, **{"modules.json": None, "config.json": ENCODER | config}), 9)
    assert pooler is not None
    pooler.check_dimensions(9)
    if error is None:
        pooler.check_dimensions(dimensions)
    else:
        with pytest.raises(BadValueError, match=error):
            pooler.check_dimensions(dimensions)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"activation_function": "torch.nn.modules.activation.Hardswish"}, "'Hardswish' is not supported"),
        ({"use_residual": True}, "use_residual must be false"),
        ({"module_input_name": "token_embeddings"}, "module_input_name must be sentence_embedding"),
        ({"out_features": 0}, "out_features must be an integer from 1"),
    ],
)
def test_a_dense_layer_that_is_not_computed_is_refused(
    tmp_path: pathlib.Path, changed: dict[str, Any], error: str
) -> None:
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": place}
        for kind, place in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    ]
    dense = {"in_features": 9, "out_features": 4, "bias": True} | changed
    folder = write(tmp_path, **{"modules.json": modules, "2_Dense/config.json": dense})
    with pytest.raises(ModelLoadError, match=error):
        choose("auto", folder, 9)


@pytest.mark.parametrize(
    ("more", "activation"),
    [
        ({}, Activation.SIGMOID),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            Activation.NONE,
        ),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            Activation.SIGMOID,
        ),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, None),
    ],
)
def test_a_cross_encoder_scores_as_its_config_says(
    tmp_path: pathlib.Path, more: dict[str, Any], activation: Activation | None
) -> None:
    config = {**ENCODER, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "s"}, **more}
    folder = write(tmp_path, **{"modules.json": None, "config.json": config})
    if activation is None:
        with pytest.raises(ModelLoadError, match="activation_fn 'Tanh' is not supported"):
            choose("auto", folder, 9)
        return
    pooler = choose("auto", folder, 9)
    assert pooler is not None
    assert (pooler.activation, pooler.pooling.kind) == (activation, PoolingKind.FIRST)
    assert [each.name for each in pooler.layers] == ["bert.pooler.dense", "classifier"]
