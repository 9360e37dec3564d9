"""What `serve run` and `nanoserve ray-config` take, and what they refuse."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml

from nanoserve.entrypoints.cli.main import run_command
from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.entrypoints.ray.arguments import deploy_file, read_arguments


def test_arguments_are_rays_and_settings_of_the_server_as_text_or_as_yaml_has_them() -> None:
    written = {"replicas": "4", "max_num_seqs": "8", "direct_port": "none", "ui": "false", "num_cpus": "2"}
    typed = {"replicas": 4, "max_num_seqs": 8, "direct_port": None, "ui": False, "num_cpus": 2}
    for arguments in (written, typed):
        own, serving = read_arguments(
            arguments, {"NANOSERVE_API_KEY": "secret", "NANOSERVE_MAX_NUM_SEQS": "3"}
        )
        assert (own.replicas, own.direct_port, own.num_cpus, own.max_replicas) == (4, None, 2, None)
        assert (serving.engine.max_num_seqs, serving.serve.listen.ui) == (8, False)
        assert [key.value for key in serving.serve.access.api_key] == ["secret"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"replicas": "0"}, "replicas: must be at least 1, got 0"),
        ({"replica": "4"}, "did you mean replicas"),
        ({"port": "8000"}, "port: is not an argument"),
        ({"replicas": "4", "max_replicas": "3"}, "max_replicas: must be at least replicas, 4"),
        ({"router_policy": "best"}, "router_policy: must be one of round-robin"),
        ({"max_num_seqs": "0"}, "max_num_seqs: must be at least 1"),
        ({"kv_events_port": "5557"}, "kv_events_port: is not an argument"),
        ({"kv_events_replay_port": "5558"}, "kv_events_replay_port: is not an argument"),
        ({"kv_events_host": "0.0.0.0"}, "kv_events_host: is not an argument"),
        ({"trace": "steps.jsonl"}, "trace: is not an argument"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(BadValueError, match=said):
        read_arguments(arguments, {})


def test_what_replicas_of_a_machine_cannot_share_is_refused_from_any_source(tmp_path: pathlib.Path) -> None:
    for name, value in (("trace", "steps.jsonl"), ("kv_events_port", 5557), ("kv_events_replay_port", 5558)):
        with pytest.raises(BadValueError, match=f"{name}: .*NANOSERVE_{name.upper()}"):
            read_arguments({}, {f"NANOSERVE_{name.upper()}": f"{value}"})
        config = tmp_path / "nanoserve.toml"
        config.write_text(f"{name} = {json.dumps(value)}\n", encoding="utf-8")
        with pytest.raises(BadValueError, match=f"{name}: .*nanoserve.toml"):
            read_arguments({"config": str(config)}, {})
    assert read_arguments({}, {"NANOSERVE_TRACE": "none"})[1].trace.trace is None


def test_what_those_who_watch_see_is_an_argument() -> None:
    _, serving = read_arguments({"trace_words": "true", "max_viewers": "3"}, {})
    assert (serving.trace.trace_words, serving.serve.watch.max_viewers) == (True, 3)
    assert read_arguments({}, {"NANOSERVE_TRACE_WORDS": "true"})[1].trace.trace_words


def test_the_file_that_is_printed_holds_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["ray-config", "model=a: #b", "replicas=4"]) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert application["import_path"] == "nanoserve_cluster.entrypoints.ray:app"
    assert application["args"] == {"model": "a: #b", "replicas": "4"}
    assert yaml.safe_load(deploy_file({}, {}))["applications"][0]["args"] == {}


def test_keys_are_not_written_into_a_file() -> None:
    with pytest.raises(BadValueError, match="api_key_file"):
        deploy_file({"api_key": "secret"}, {})


def test_without_ray_one_line_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run_command(["ray-status"]) == 1
    assert capsys.readouterr().err == "nanoserve: Ray Serve is not installed: pip install 'nanoserve[ray]'\n"
