"""Where values come from, which source wins, and what is said of a bad one."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from nanoserve.adapters.pytorch.linear import QUANTIZATIONS
from nanoserve.entrypoints.compose.config.command_settings import BenchSettings
from nanoserve.entrypoints.compose.config.configuration import (
    ALL_SETTINGS,
    SAMPLING_SETTINGS,
    argument_settings,
    read_configuration,
    unknown_variables,
)
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.kinds import origins, size
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS

TOML = "max_num_seqs = 3\n[sampling]\ntemperature = 0.3\nstop = ['x']\n[generate]\nchat = true\n"


@pytest.fixture
def toml(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "settings.toml"
    path.write_text(TOML, encoding="utf-8")
    return str(path)


def read(
    flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, config: str | None = None
) -> Any:
    return read_configuration(flags or {}, environ or {}, config=config)


def test_each_source_wins_over_the_next(toml: str) -> None:
    model = ({"temperature": 0.1, "top_p": 0.2, "min_p": 0.3}, "the model's file")
    expected = {"max_num_seqs": 3, "temperature": 0.3, "top_p": 0.2}
    origins = {"max_num_seqs": toml, "temperature": f"{toml} [sampling]", "top_p": "the model's file"}
    layers: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({}, {}),
        ({"NANOSERVE_TEMPERATURE": "0.4", "NANOSERVE_MIN_P": "0.5"}, {}),
        ({"NANOSERVE_TEMPERATURE": "0.4", "NANOSERVE_MIN_P": "0.5"}, {"temperature": "0.6"}),
    ]
    seen = []
    for environ, flags in layers:
        configuration = read(flags, environ, toml).with_model_defaults(*model)
        seen.append((configuration.values["temperature"].value, configuration.values["temperature"].origin))
        assert configuration.sampling.temperature == seen[-1][0]
        assert {name: configuration.values[name].value for name in ("max_num_seqs", "top_p")} == {
            name: expected[name] for name in ("max_num_seqs", "top_p")
        }
        assert configuration.values["top_p"].origin == origins["top_p"]
    assert seen == [
        (0.3, origins["temperature"]),
        (0.4, "NANOSERVE_TEMPERATURE"),
        (0.6, "--temperature"),
    ]


def test_the_parts_of_the_tree_hold_the_merged_values(toml: str) -> None:
    configuration = read({"threads": "2"}, {"NANOSERVE_LOG_LEVEL": "info"}, toml)
    assert configuration.engine == EngineSettings(max_num_seqs=3, threads=2)
    assert configuration.generate.is_chat
    assert configuration.log.log_level == "info"
    assert configuration.sampling.stop == ("x",)
    assert configuration.verify.tolerance == 1e-4
    assert configuration.values["depth"].origin == "default"


def test_the_environment_can_name_the_file(toml: str) -> None:
    assert read(environ={"NANOSERVE_CONFIG": toml}).engine.max_num_seqs == 3


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"NANOSERVE_MAX_NUM_SEQS": "0"},
            "max_num_seqs: must be at least 1, got 0 (from NANOSERVE_MAX_NUM_SEQS)",
        ),
        (
            {"NANOSERVE_MAX_NUM_SEQS": "many"},
            "max_num_seqs: must be an integer, got 'many' (from NANOSERVE_MAX_NUM_SEQS)",
        ),
        (
            {"NANOSERVE_DTYPE": "int9"},
            "dtype: must be one of auto, float32, bfloat16, float16, got 'int9' (from NANOSERVE_DTYPE)",
        ),
        ({"NANOSERVE_PARANOID": "maybe"}, "paranoid: must be one of true, false"),
        ({"NANOSERVE_KV_MEMORY": "1.5"}, "kv_memory: must be at least one byte, or a fraction in (0, 1]"),
        ({"NANOSERVE_KV_MEMORY": "4 parsecs"}, "kv_memory: must be bytes such as 4GiB"),
        ({"NANOSERVE_WATERMARK": "nan"}, "watermark: must be a finite number"),
        ({"NANOSERVE_MAX_ITL_MS": "0"}, "max_itl_ms: must be above 0"),
        (
            {"NANOSERVE_TOP_P": "7"},
            "top_p: must be in [0, 1], got 7.0 (from NANOSERVE_TOP_P)",
        ),
    ],
)
def test_a_bad_value_names_the_setting_and_its_origin(environ: dict[str, str], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        _ = read(environ=environ).sampling
    assert str(caught.value).startswith(message)
    assert f"(from {next(iter(environ))})" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq = 1", "sets 'max_num_seq', which is not a setting; did you mean 'max_num_seqs'?"),
        (
            "temperature = 1",
            "sets 'temperature', which is not a setting; did you mean 'sampling.temperature'?",
        ),
        ("[sampling]\ntop_pp = 1", "did you mean 'sampling.top_p'?"),
        ("[sampling]\nmax_num_seqs = 1", "did you mean 'max_num_seqs'?"),
        ("[samplin]\ntop_p = 1", "sets 'samplin', which is not a setting"),
        ("max_num_seqs = '4'", "max_num_seqs: must be an integer, got '4' (from "),
        ("max_num_seqs = true", "max_num_seqs: must be an integer, got True"),
        ("max_num_seqs =", "is not valid TOML"),
        ('"serve.port" = 1', "sets '\"serve.port\"', which is not a setting; did you mean 'serve.port'?"),
        ('"sampling.top_p" = 1.0', "did you mean 'sampling.top_p'?"),
        ('serve."port.x" = 1', "sets 'serve.port.x', which is not a setting"),
        (f"max_num_seqs = 1{'0' * 400}", "max_num_seqs: must be an integer of 64 bits, got 1000"),
        (f"max_num_seqs = -{2**63}", "max_num_seqs: must be an integer of 64 bits, got -9223372036854775808"),
        (f"serve.max_body_size = {2**63}", "max_body_size: must be an integer of 64 bits"),
        (f"sampling.temperature = 1{'0' * 400}", "temperature: must be a finite number, got 1000"),
        ("sampling.temperature = 1e400", "temperature: must be a finite number, got inf"),
        (f"sampling.stop_token_ids = [1{'0' * 400}]", "stop_token_ids: takes token ids from 0, got [1000"),
        (f"sampling.logit_bias = {{1 = 1{'0' * 400}}}", "logit_bias: takes a table of token ids"),
        (f"kv_memory = 1{'0' * 400}", "kv_memory: must be bytes such as 4GiB"),
        (f"kv_memory = '1{'0' * 400}GiB'", "kv_memory: must be bytes such as 4GiB"),
        (f"serve.trace_limit = 1{'0' * 400}", "trace_limit: must be bytes such as 256M"),
        (f"serve.trace_limit = '1{'0' * 400}'", "trace_limit: must be bytes such as 256M"),
        ("[sampling]\nlogit_bias = 3", "logit_bias: takes a table"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadValueError) as caught:
        read(config=str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_explained(tmp_path: pathlib.Path, content: bytes | None) -> None:
    path = tmp_path / "unreadable.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadValueError, match=r"config: .*unreadable"):
        read(config=str(path))


@pytest.mark.parametrize(
    ("text", "value"),
    [("4GiB", 4 * 2**30), ("512 MB", 512 * 10**6), ("1.5k", 1536), ("1073741824", 2**30), ("0.5", 0.5)],
)
def test_memory_is_read_with_its_unit(text: str, value: float) -> None:
    read_back = read({"kv_memory": text}).engine.kv_memory
    assert read_back == value
    assert type(read_back) is type(value)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("64k", 65536), ("256M", 2**28), ("1GiB", 2**30), ("1.5MB", 1_500_000), ("70000", 70000)],
)
def test_a_size_is_an_amount_of_bytes(text: str, amount: int) -> None:
    assert size(low=65536).parse(text) == amount


@pytest.mark.parametrize("value", ["much", "", "-1", "0.5", 0.5, 65535, "63k", True, None])
def test_what_is_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be bytes such as 256M, at least 65536, got "):
        size(low=65536).check(value)


@pytest.mark.parametrize(
    "origin", ["https://page.example", "http://localhost:3000", "http://[::1]:80", "app://x", "*"]
)
def test_an_origin_is_what_browsers_send(origin: str) -> None:
    assert origins().check((origin.upper(),)) == (origin,)


@pytest.mark.parametrize(
    "origin", ["foo", "page.example:80", "https://", "https://a/", "https://a b", "https://a:x", "null", ""]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match=r"takes (origins such as|texts that)"):
        origins().check((origin,))


def test_origins_of_the_server_are_checked() -> None:
    with pytest.raises(BadValueError, match="cors_origin: takes origins"):
        _ = read({"cors_origin": ("foo",)}).serve


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ({"stop": ("a", "[")}, "stop", ("a", "[")),
        ({"stop_token_ids": "1,2"}, "stop_token_ids", (1, 2)),
        ({"logit_bias": "3:-1.5,1:2"}, "logit_bias", ((1, 2.0), (3, -1.5))),
        ({"max_tokens": "none"}, "max_tokens", None),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"seed": "-4"}, "seed", -4),
    ],
)
def test_sampling_flags_are_read(flags: dict[str, Any], name: str, value: object) -> None:
    assert getattr(read(flags).sampling, name) == value


def test_the_benchmarks_have_a_table_of_their_own(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bench.toml"
    path.write_text('[bench]\nbatch_sizes = [1, 2]\nworkload = "nano"\n', encoding="utf-8")
    configuration = read({"seeds": "5"}, {"NANOSERVE_NUM_PROMPTS": "7"}, str(path))
    assert configuration.bench == BenchSettings(batch_sizes=(1, 2), workload="nano", seeds=5, num_prompts=7)
    assert configuration.values["workload"].origin == f"{path} [bench]"
    assert read({"batch_sizes": "3,4"}).bench.batch_sizes == (3, 4)


@pytest.mark.parametrize("text", ["", "1,x", "0", "1,,2", "1.5"])
def test_bad_batch_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadValueError, match=r"batch_sizes: takes integers .*from --batch-sizes"):
        read({"batch_sizes": text})


def test_what_the_device_decides_is_open() -> None:
    settings = read({"depth": "auto", "max_num_seqs": "auto"}).engine
    assert (settings.depth, settings.max_num_seqs, settings.max_num_batched_tokens) == (None, None, None)
    assert read({"depth": "4"}).engine.depth == 4


def test_a_json_array_in_the_environment_is_several_texts() -> None:
    assert read(environ={"NANOSERVE_STOP": '["a", "b"]'}).sampling.stop == ("a", "b")
    assert read(environ={"NANOSERVE_STOP": "[a"}).sampling.stop == ("[a",)


def test_python_arguments_are_checked_and_none_is_the_default() -> None:
    assert argument_settings({"dtype": None, "kv_memory": "2KiB"}) == EngineSettings(kv_memory=2048)
    with pytest.raises(
        BadValueError, match=r"max_num_seqs: must be an integer.*from the argument max_num_seqs"
    ):
        argument_settings({"max_num_seqs": 1.5})
    with pytest.raises(BadValueError, match=r"max_seqs: is not a setting; did you mean max_num_seqs\?"):
        argument_settings({"max_seqs": 1})


def test_every_sampling_field_is_a_setting_and_every_name_is_unique() -> None:
    assert {each.name for each in SAMPLING_SETTINGS} == PARAMETERS.keys() - {"deterministic"}
    assert len({each.name for each in ALL_SETTINGS}) == len(ALL_SETTINGS)


def test_a_misspelt_variable_is_found() -> None:
    environ = {"NANOSERVE_TEMPRATURE": "1", "NANOSERVE_TOP_P": "1", "NANOSERVE_CONFIG": "x", "HOME": "/"}
    assert unknown_variables(environ) == ["NANOSERVE_TEMPRATURE"]


def test_the_quantizations_to_choose_from_are_those_that_weights_are_packed_in() -> None:
    (setting,) = (each for each in ALL_SETTINGS if each.name == "quantization")
    assert setting.kind.metavar == f"[{'|'.join(('none', *QUANTIZATIONS))}]"
