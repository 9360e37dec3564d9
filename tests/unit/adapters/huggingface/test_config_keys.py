"""Every key that transformers' config classes and models know is read, refused by name, or listed as one that changes nothing."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoConfig

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES, Architecture
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import LinearRopeScaling, Llama3RopeScaling, YarnRopeScaling
from nanoserve.ports.model_spec import ModelSpec

DOCS = pathlib.Path(__file__).parents[4] / "docs" / "models.md"
CLASSES = {"gemma3": "gemma3_text", "kimi_k2": "deepseek_v3"}
"""Where transformers has the class of a family's text under another key, or knows the family by another name."""
SMALL: dict[str, dict[str, Any]] = json.loads(
    pathlib.Path(__file__).with_name("small_configs.json").read_text()
)
"""What all small models have in common, and what those of a family have beside."""
OTHERS: tuple[Any, ...] = (False, True, 1, 6, 0.5, "other", ["other"], {"other": 1})
NO_KEYS = {
    *("_attn_implementation", "_experts_implementation", "get_text_config", "standardize_rope_params"),
    *("validate_rope", "text_config", "vision_config", "model_type", "per_layer_config"),
    *("image_token_id", "mm_tokens_per_image"),  # of the images beside a text
    "attention_chunk_size",  # of models whose layers attend in chunks
}
"""What models read of a config that is no key of config.json, or none of these families."""


def raw_config(architecture: Architecture, **keys: Any) -> dict[str, Any]:
    """A small model of a family, as config.json says it; `keys` are set, or left out where they are `...`."""
    model_type = "deepseek_v3" if architecture.key == "kimi_k2" else architecture.key
    text = {**SMALL["all"], **SMALL.get(model_type, {}), **keys}
    text = {key: value for key, value in text.items() if value is not ...}
    if architecture.text_key is None:
        return {"model_type": model_type, "architectures": [architecture.name], **text}
    return {"model_type": model_type, "architectures": [architecture.name], architecture.text_key: text}


def read(folder: pathlib.Path, raw: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(raw))
    return read_spec(str(folder))


def text_class(architecture: Architecture) -> Any:
    return CONFIG_MAPPING[CLASSES.get(architecture.key, architecture.key)]


@functools.cache
def harmless(model_type: str) -> frozenset[str]:
    """The keys that docs/models.md lists as ones that change nothing, each with a reason and perhaps with some families."""
    part = DOCS.read_text().split("<!-- keys: begin -->")[1].split("<!-- keys: end -->")[0]
    rows = [line.split("|")[1:3] for line in part.splitlines() if line.startswith("| `")]
    assert all(reason.strip() for _, reason in rows)
    of_family = [keys for keys, _ in rows if _is_of(model_type, keys.partition("(")[2])]
    return frozenset(key for keys in of_family for key in re.findall(r"`(\w+)`", keys.partition("(")[0]))


def _is_of(model_type: str, families: str) -> bool:
    """Whether a row is of a family: of some, of all but some, or of all."""
    return not families or (model_type in re.findall(r"[\w-]+", families)) != families.startswith("but ")


def keys_read_by_models(architecture: Architecture) -> Iterator[str]:
    """What the code of transformers' model, and what all models share, looks up in a config."""
    module = text_class(architecture).__module__.replace("configuration_", "modeling_")
    for each in (module, "transformers.masking_utils", "transformers.modeling_rope_utils"):
        yield from _lookups(each)


@functools.cache
def _lookups(module: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            owner, name = node.args[:2]
            if _is_config(owner) and isinstance(name, ast.Constant):
                found.add(str(name.value))
    return frozenset(found)


def _source(module: str) -> str:
    """Read, and not imported: that takes seconds for each family."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return pathlib.Path(found.origin).read_text()


def _is_config(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    return name in {"config", "text_config"}


def all_keys(architecture: Architecture) -> list[str]:
    config = text_class(architecture)
    fields = [each.name for each in dataclasses.fields(config)]
    found = {*fields, *config.attribute_map, *keys_read_by_models(architecture)} - NO_KEYS
    return sorted(found - {"architectures", "transformers_version"})


FAMILIES = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=[each.key for each in ARCHITECTURES])


@FAMILIES
def test_no_key_that_transformers_knows_is_ignored_in_silence(
    tmp_path: pathlib.Path, architecture: Architecture
) -> None:
    base = read(tmp_path, raw_config(architecture))
    ignored = [
        key
        for key in all_keys(architecture)
        if key not in harmless(architecture.key) and not _counts(tmp_path, architecture, base, key)
    ]
    assert ignored == []


def _counts(folder: pathlib.Path, architecture: Architecture, base: ModelSpec, key: str) -> bool:
    """Whether some value of a key changes the model or is refused with the key's name."""
    for value in OTHERS:
        try:
            if read(folder, raw_config(architecture, **{key: value})) != base:
                return True
        except ModelLoadError as error:
            if key in str(error):
                return True
    return False


@FAMILIES
def test_what_is_listed_as_harmless_changes_no_model(
    tmp_path: pathlib.Path, architecture: Architecture
) -> None:
    base = read(tmp_path, raw_config(architecture))
    known = set(all_keys(architecture)) & harmless(architecture.key)
    assert [key for key in sorted(known) if _counts(tmp_path, architecture, base, key)] == []


@FAMILIES
@pytest.mark.parametrize("value", [None, ..., {}], ids=["null", "missing", "empty"])
def test_null_missing_and_empty_keys_are_read_as_transformers_reads_them(
    tmp_path: pathlib.Path, architecture: Architecture, value: Any
) -> None:
    """Each key in turn: the model that transformers' completed config describes, or one error that names the key."""
    wrong = []
    for key in all_keys(architecture):
        if key not in harmless(architecture.key):
            problem = _compared(tmp_path, architecture, raw_config(architecture, **{key: value}), key)
            if problem is not None:
                wrong.append((key, problem))
    assert wrong == []


def _compared(folder: pathlib.Path, architecture: Architecture, raw: dict[str, Any], key: str) -> str | None:
    theirs = _theirs(raw)
    try:
        ours = read(folder, raw)
    except ModelLoadError as error:
        return None if key in str(error) or theirs is None else f"refused: {error}"
    if theirs is None:
        return "served"
    same = read(folder, {**theirs, "architectures": [architecture.name]})
    return None if ours == same else f"read as another model: {ours} instead of {same}"


def _theirs(raw: dict[str, Any]) -> dict[str, Any] | None:
    """What transformers makes of a config, all defaults written out; None where it refuses it."""
    try:
        config = AutoConfig.for_model(**json.loads(json.dumps(raw)))
    except Exception:  # noqa: BLE001 - whatever transformers happens to raise
        return None
    written: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return written


SCALED = [each for each in ARCHITECTURES if each.key != "phi3" and not each.is_encoder]
"""Phi-3 knows longrope alone, which test_configs.py looks at; encoders know none."""
Scaling = type[YarnRopeScaling] | type[Llama3RopeScaling] | type[LinearRopeScaling]
ROPES: dict[str, tuple[dict[str, Any], Scaling]] = {
    "yarn": ({"rope_type": "yarn", "factor": 4.0}, YarnRopeScaling),
    "llama3": (
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        Llama3RopeScaling,
    ),
    "linear": ({"rope_type": "linear", "factor": 4.0}, LinearRopeScaling),
}


@pytest.mark.parametrize("architecture", SCALED, ids=[each.key for each in SCALED])
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("inside", [{}, {"original_max_position_embeddings": 32}], ids=["outside", "both"])
def test_the_original_length_beside_a_rope_counts_as_in_transformers(
    tmp_path: pathlib.Path, architecture: Architecture, kind: str, inside: dict[str, Any]
) -> None:
    rope, scaling = ROPES[kind]
    raw = raw_config(architecture, rope_scaling={**rope, **inside}, original_max_position_embeddings=64)
    spec = read(tmp_path, raw)
    config: Any = AutoConfig.from_pretrained(tmp_path)
    config = config.get_text_config()
    config.standardize_rope_params()  # as its rotary embedding does
    parameters = config.rope_parameters.get("full_attention", config.rope_parameters)
    found = [each.scaling for each, _ in spec.rotations if isinstance(each.scaling, scaling)]
    assert len(found) == 1
    if not isinstance(found[0], LinearRopeScaling):
        assert parameters["original_max_position_embeddings"] == found[0].original_max_position
