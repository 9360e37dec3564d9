from __future__ import annotations

import pathlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

Resolve = Callable[..., dict[str, Any]]


def test_the_files_of_a_model_are_downloaded_and_no_others(
    hub: Any, resolve: Resolve, model_files: dict[str, bytes]
) -> None:
    folder = pathlib.Path(resolve("tiny/model", hub.endpoint)["folder"])
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert found == model_files


def test_a_second_time_downloads_nothing_and_works_offline(hub: Any, resolve: Resolve) -> None:
    first = resolve("tiny/model", hub.endpoint)
    asked = len(hub.requests)
    assert resolve("tiny/model", hub.endpoint)["folder"] == first["folder"]
    assert not [request for request in hub.requests[asked:] if "/resolve/" in request]
    offline = resolve("tiny/model", hub.endpoint, {"HF_HUB_OFFLINE": "1"})
    assert offline["folder"] == first["folder"]


def test_progress_is_shown_only_where_asked(hub: Any, resolve: Resolve, tmp_path: pathlib.Path) -> None:
    shown = resolve("tiny/model", hub.endpoint, {"HF_HOME": str(tmp_path / "1")}, progress=True)
    silent = resolve("tiny/model", hub.endpoint, {"HF_HOME": str(tmp_path / "2")}, progress=False)
    assert "100%" in shown["terminal"]
    assert "%" not in silent["terminal"]


def test_a_revision_is_passed_on(hub: Any, resolve: Resolve) -> None:
    assert "folder" in resolve("tiny/model", hub.endpoint, revision="v1")
    error = resolve("tiny/model", hub.endpoint, revision="v9")["error"]
    assert error.startswith("tiny/model: has no revision 'v9'")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tiny/absent", ["is not on the hub", "check the spelling", "local folder"]),
        ("tiny/private", ["is not on the hub", "hf auth login"]),
        ("tiny/gated", ["is gated", "ask for access", "hf auth login"]),
        ("tiny/pickled", ["no safetensors weights"]),
        ("tiny/adapter", ["has no config.json"]),
        ("tiny/broken", ["HTTP status 500", "try again"]),
    ],
)
def test_each_refusal_says_what_to_do(hub: Any, resolve: Resolve, name: str, parts: list[str]) -> None:
    error = resolve(name, hub.endpoint)["error"]
    assert all(part in error for part in parts), error
    assert name.split("/")[1] in error
    assert "\n" not in error


def test_offline_mode_is_named(hub: Any, resolve: Resolve) -> None:
    error = resolve("tiny/model", hub.endpoint, {"HF_HUB_OFFLINE": "1"})["error"]
    assert "HF_HUB_OFFLINE" in error


def test_a_hub_that_cannot_be_reached_is_named(resolve: Resolve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    error = resolve("tiny/model", endpoint)["error"]
    assert f"{endpoint} cannot be reached" in error
    assert "\n" not in error
