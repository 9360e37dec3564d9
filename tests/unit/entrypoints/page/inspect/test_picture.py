"""Finding a browser and what becomes of one that draws nothing; tests/browser looks at what a real one draws."""

from __future__ import annotations

import pathlib

import pytest

from nanoserve.entrypoints.page.inspect import picture
from nanoserve.ports.errors import BadValueError


@pytest.fixture
def programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(picture, "BROWSERS", ("chromium", "google-chrome"))
    return folder


def install(folder: pathlib.Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_without_a_browser_the_remedy_is_named(programs: pathlib.Path) -> None:
    with pytest.raises(
        BadValueError, match=r"png: needs Chromium or Chrome .* install one .* or write --report"
    ):
        picture.find_browser()
    install(programs, "google-chrome", "true")
    assert picture.find_browser() == str(programs / "google-chrome")


def test_the_picture_is_what_the_browser_wrote_of_the_report(
    programs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = """
for each in "$@"; do
    case "$each" in
        --screenshot=*) out="${each#--screenshot=}" ;;
        file://*#print) page="${each#file://}"; page="${page%#print}" ;;
    esac
done
while read -r line; do echo "drawn: $line"; done < "$page" > "$out"
"""
    install(programs, "chromium", script)
    picture.draw(b"document\n", str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").read_text() == "drawn: document\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bin", "run.png"], "nothing else is left"


def test_a_browser_that_draws_nothing_is_an_error_with_its_last_words(
    programs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, "chromium", "echo first; echo no usable sandbox >&2")
    with pytest.raises(BadValueError, match="has drawn nothing: no usable sandbox"):
        picture.draw(b"", str(tmp_path / "run.png"))
    monkeypatch.setattr(picture, "TIMEOUT_SECONDS", 0.0)
    with pytest.raises(BadValueError, match="has drawn nothing: it was stopped after 0 s"):
        picture.draw(b"", str(tmp_path / "run.png"))
    assert not (tmp_path / "run.png").exists()
