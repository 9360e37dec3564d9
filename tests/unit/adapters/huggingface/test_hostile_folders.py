"""Whatever stands in a model folder's files, reading it ends, with one clear line."""

from __future__ import annotations

import json
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES
from nanoserve.adapters.huggingface.generation_config import read_sampling_defaults
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.unit.adapters.huggingface.conftest import chat_style
from tests.unit.adapters.huggingface.test_config_keys import raw_config

NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 10**30, 1.5, float("nan"), float("inf"), "", "x" * 10_000),
    *([], [None], {}, {"a": None}, [[[]]], ["a", 1, {}]),
)
READERS = (read_spec, HFTokenizer, read_sampling_defaults)


@pytest.fixture
def folder(byte_level_folder: Callable[[str | None], str]) -> pathlib.Path:
    path = pathlib.Path(byte_level_folder(chat_style("chatml")))
    (path / "config.json").write_text(json.dumps(raw_config(ARCHITECTURES[6])))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.5}))
    return path


def problems(folder: pathlib.Path) -> Iterator[str]:
    """What each reader says of a folder that it cannot read; anything but its own error is the test's."""
    for read in READERS:
        try:
            read(str(folder))
        except (ModelLoadError, BadValueError) as error:
            yield str(error)


def directory(path: pathlib.Path) -> None:
    path.mkdir()


def loop(path: pathlib.Path) -> None:
    path.symlink_to(path)


def nested(path: pathlib.Path) -> None:
    path.write_text("[" * 200_000)


def nested_object(path: pathlib.Path) -> None:
    path.write_text('{"a":' * 200_000)


def long_number(path: pathlib.Path) -> None:
    path.write_text('{"vocab_size": ' + "9" * 5000 + "}")


def no_text(path: pathlib.Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [directory, os.mkfifo, loop, nested, nested_object, long_number, no_text])
def test_what_is_no_file_or_no_json_is_one_line(
    folder: pathlib.Path, name: str, make: Callable[[pathlib.Path], None]
) -> None:
    (folder / name).unlink()
    make(folder / name)
    said = list(problems(folder))
    assert all("\n" not in each and str(folder) in each for each in said)
    if name == "config.json":
        assert said


@pytest.mark.parametrize("name", NAMES)
def test_values_of_any_kind_are_read_or_refused(folder: pathlib.Path, name: str) -> None:
    whole = json.loads((folder / name).read_text())
    places = list(_places(whole))
    draw = random.Random(name)
    for place in draw.sample(places, min(len(places), 60)):
        value = draw.choice(VALUES)
        (folder / name).write_text(json.dumps(_changed(whole, place, value)))
        assert all("\n" not in each for each in problems(folder)), (place, value)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=[each.key for each in ARCHITECTURES])
def test_every_key_of_a_config_takes_any_value(tmp_path: pathlib.Path, architecture: Any) -> None:
    keys = [
        *architecture.defaults,
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "mlp_only_layers",
        "rotary_dim",
    ]
    keys += [
        "quantization_config",
        "dtype",
        "architectures",
        "rope_theta",
        "partial_rotary_factor",
        "clip_qkv",
    ]
    for key in keys:
        for value in VALUES:
            raw = raw_config(architecture, **{key: value})
            (tmp_path / "config.json").write_text(json.dumps(raw))
            try:
                read_spec(str(tmp_path))
            except ModelLoadError as error:
                assert "\n" not in str(error)  # noqa: PT017 - it may also be served


def test_an_id_that_no_table_can_hold_is_refused(folder: pathlib.Path) -> None:
    written = json.loads((folder / "tokenizer.json").read_text())
    written["model"]["vocab"]["far"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(ModelLoadError, match="has the token id 2147483648; ids of up to"):
        HFTokenizer(str(folder))


def test_a_panic_of_the_tokenizers_library_is_an_error(folder: pathlib.Path) -> None:
    written = json.loads((folder / "tokenizer.json").read_text())
    written["model"]["continuing_subword_prefix"] = "x" * 10_000
    (folder / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(ModelLoadError, match="no tokenizer can be loaded from here"):
        HFTokenizer(str(folder))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:20]:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _changed(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(whole))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy
