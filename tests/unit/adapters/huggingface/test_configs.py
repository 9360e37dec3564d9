"""A config.json becomes the model that it describes, in every form in which each family was published, or one error that names the key.

`configs.json` holds configs and their specs; `refused_configs.json` a pattern of the error for each config that is refused. That the
specs are right is shown where models of every family are compared with transformers; that every default is
transformers' own, in test_config_keys.py. `python -m tests.unit.adapters.huggingface.test_configs` records the specs anew.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import attrs
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.entrypoints.compose.choices import choose_dtype
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.layer_spec import LongRopeScaling
from nanoserve.ports.model_spec import ModelSpec

RECORDED = pathlib.Path(__file__).with_name("configs.json")
CASES: list[dict[str, Any]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else []
REFUSED: list[tuple[str, dict[str, Any]]] = (
    json.loads(RECORDED.with_name("refused_configs.json").read_text()) if RECORDED.exists() else []
)
SMALL = {"model_type": "llama", "vocab_size": 101, "hidden_size": 48, "num_attention_heads": 6}


def read(folder: pathlib.Path, config: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    return read_spec(str(folder))


def as_data(value: Any) -> Any:
    """A spec as JSON has it: fields that have their defaults are left out, and classes are named."""
    if attrs.has(type(value)):
        return {type(value).__name__: fields_of(value)}
    return [as_data(each) for each in value] if isinstance(value, tuple) else value


def fields_of(value: Any) -> dict[str, Any]:
    fields = ((each, getattr(value, each.name)) for each in attrs.fields(type(value)))
    return {each.name: as_data(kept) for each, kept in fields if kept != each.default}


def recorded(spec: ModelSpec) -> dict[str, Any]:
    """Of layers each kind once, and their order by letters."""
    kinds = list(dict.fromkeys(spec.layers))
    order = "".join(chr(ord("a") + kinds.index(layer)) for layer in spec.layers)
    return {**fields_of(spec), "layers": order, "kinds": [as_data(kind) for kind in kinds]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_config_is_the_model_that_is_recorded(tmp_path: pathlib.Path, case: dict[str, Any]) -> None:
    assert recorded(read(tmp_path, case["config"])) == case["spec"]


@pytest.mark.parametrize(("named", "config"), REFUSED, ids=str)
def test_what_is_not_supported_is_named(tmp_path: pathlib.Path, named: str, config: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=named) as caught:
        read(tmp_path, config)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 7}, None, (7,)),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, (9, 7, 8)),
        ({"eos_token_id": 7}, {"eos_token_id": [7, 9]}, (7, 9)),
        ({"eos_token_id": None}, {"eos_token_id": [9]}, (9,)),
        ({"eos_token_id": None}, None, ()),
        ({}, {"eos_token_id": 9}, (9,)),
        ({}, {}, (2,)),
        ({"eos_token_id": -1}, {"eos_token_id": [5, 101, 5]}, (5,)),
    ],
)
def test_end_of_sequence_ids_are_the_union_of_both_files(
    tmp_path: pathlib.Path,
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    expected: tuple[int, ...],
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read(tmp_path, SMALL | config).eos_token_ids == expected


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (None, "has no config.json"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_missing_or_malformed_file_is_one_clear_error(
    tmp_path: pathlib.Path, written: bytes | None, named: str
) -> None:
    if written is not None:
        (tmp_path / "config.json").write_bytes(written)
    with pytest.raises(ModelLoadError, match=named) as caught:
        read_spec(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_code_in_the_folder_is_not_run(tmp_path: pathlib.Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    read(tmp_path, SMALL | {"auto_map": {"AutoConfig": "evil.Evil"}})
    assert not (tmp_path / "ran").exists()


SHORT, LONG = [1.0 + place / 50 for place in range(36)], [1.5 + place for place in range(36)]


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("keys", [{"original_max_position_embeddings": 2048}, {"rope_theta": 1e5}])
@pytest.mark.parametrize("more", [{}, {"factor": 4.0}, {"attention_factor": 1.5}])
def test_factors_by_length_are_those_of_transformers(
    tmp_path: pathlib.Path, kind: str, keys: dict[str, Any], more: dict[str, Any]
) -> None:
    scaling = {"type": kind, "short_factor": SHORT, "long_factor": LONG, **more}
    shape = {"model_type": "phi3", "max_position_embeddings": 131_072, "partial_rotary_factor": 0.75, **keys}
    spec = read(tmp_path, {**shape, "rope_scaling": scaling})
    scaling["type"] = "longrope"  # the only name that all releases of transformers know
    (tmp_path / "config.json").write_text(json.dumps({**shape, "rope_scaling": scaling}))
    config = AutoConfig.from_pretrained(tmp_path)
    assert (spec.usual_length, spec.max_position) == (config.original_max_position_embeddings, 131_072)
    for longest in (spec.usual_length, spec.usual_length + 1):
        ((rope, head_dim),) = spec.for_length(longest).rotations
        wanted, amplitude = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=longest)
        rotary = Rotary(rope, head_dim, torch.device("cpu"))
        # The first half is that, negated; 12 of 48 pairs stand still.
        assert torch.equal(rotary._frequencies[48:84], wanted)
        assert isinstance(rope.scaling, LongRopeScaling)
        assert rope.scaling.attention_factor == amplitude


def test_float16_is_never_chosen_where_a_family_overflows(tmp_path: pathlib.Path) -> None:
    spec = read(tmp_path, {"model_type": "gemma2", "dtype": "float16"})
    with pytest.raises(BadValueError, match="float16 overflows in gemma2"):
        choose_dtype(EngineSettings(model="x", dtype="float16"), spec, "cuda")
    assert choose_dtype(EngineSettings(model="x"), spec, "cuda") == "float32"
    llama: ModelSpec = attrs.evolve(spec, exceeds_float16=False)
    assert choose_dtype(EngineSettings(model="x"), llama, "cuda") == "float16"


def record() -> None:
    """Write the specs of all configs anew; what changes is to be looked at."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{**case, "spec": recorded(read(pathlib.Path(folder), case["config"]))} for case in CASES]
    members = [",\n  ".join(f'"{name}": {json.dumps(value)}' for name, value in row.items()) for row in rows]
    RECORDED.write_text("[\n {" + "},\n {".join(members) + "}\n]\n")


if __name__ == "__main__":
    record()
