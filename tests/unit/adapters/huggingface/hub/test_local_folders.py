from __future__ import annotations

import pathlib

import pytest

from nanoserve.adapters.huggingface.hub import resolve_model
from nanoserve.ports.errors import ModelLoadError


def test_an_existing_folder_is_itself(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == str(folder)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/model") == "owner/model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/owner/model") == str(folder)


@pytest.mark.parametrize(
    "name", ["./gone", "/gone", "~/gone", "~nobody-here", "../gone/model", "a/b/c", "gone/", "."]
)
def test_a_path_that_is_no_model_folder_is_never_asked_of_the_hub(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no such folder|has no config\.json"):
        resolve_model(name)


def test_a_folder_without_config_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", ["", "a b/c", "-a/b", "a--b", "owner/na\x00me", "o" * 5000])
def test_a_name_the_hub_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError):
        resolve_model(name)
