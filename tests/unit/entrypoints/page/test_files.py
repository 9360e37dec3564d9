"""The page's files: all of them are installed, none breaks the policy, and what they name exists."""

from __future__ import annotations

import importlib.resources
import json
import posixpath
import re
from typing import Any, Final

import pytest

from nanoserve.entrypoints.page.files import read_page
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody, CompletionBody
from nanoserve.ports.sampling import PARAMETERS

FILES: Final = {path: each.body.decode() for path, each in read_page().items()}
SCRIPTS: Final = {path: text for path, text in FILES.items() if path.endswith(".js")}
STYLES: Final = {path: text for path, text in FILES.items() if path.endswith(".css")}
INDEX: Final = FILES["/"]
NAMESPACES: Final = {'xmlns="http://www.w3.org/2000/svg"', '"http://www.w3.org/2000/svg"'}


def test_every_file_in_the_folder_is_served() -> None:
    folder = importlib.resources.files("nanoserve.entrypoints.page") / "static"
    names, open_folders = set(), [("", folder)]
    while open_folders:
        prefix, each = open_folders.pop()
        for entry in each.iterdir():
            if entry.is_dir():
                open_folders.append((f"{prefix}{entry.name}/", entry))
            else:
                names.add(prefix + entry.name)
    assert {"index.html", "style.css", "main.js", "engine/engine_view.js"} <= names
    names.add("sampling.js")
    assert read_page().keys() == {"/" if each == "index.html" else f"/ui/{each}" for each in names}


def test_nothing_stands_in_the_page_that_the_policy_forbids() -> None:
    assert not re.findall(r"<script(?![^>]*\bsrc=)", INDEX)
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", INDEX)
    assert re.findall(r"<script[^>]*>", INDEX)
    for path, text in SCRIPTS.items():
        forbidden = r"\.innerHTML|\.outerHTML|insertAdjacentHTML|document\.write\b|\beval\(|new Function\(|setAttribute\(\"style\""
        assert not re.findall(forbidden, text), path
        assert not re.findall(r"localStorage\.setItem\((?!THEME_KEY)", text), path


@pytest.mark.parametrize("path", sorted(FILES))
def test_no_file_names_another_host(path: str) -> None:
    text = FILES[path]
    for namespace in NAMESPACES:
        text = text.replace(namespace, "")
    assert not re.findall(r"https?://|[\"'(]//\w", text)
    if path.endswith(".css"):
        assert not re.findall(r"@import|url\((?!\"?data:)", text)


def test_what_the_files_load_is_there() -> None:
    loaded = re.findall(r"(?:href|src)=\"(ui/[^\"]+)\"", INDEX)
    assert {"ui/main.js", "ui/style.css"} <= set(loaded)
    assert {f"/{each}" for each in loaded} <= set(FILES)
    for path, text in SCRIPTS.items():
        for target in re.findall(r"^import .* from \"([^\"]+)\";$", text, re.MULTILINE):
            assert posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) in FILES, (
                path,
                target,
            )


def test_every_element_that_scripts_ask_for_is_in_the_page() -> None:
    ids = set(re.findall(r"\bid=\"([\w-]+)\"", INDEX))
    asked = {each for path, text in SCRIPTS.items() if "/engine/" not in path for each in re.findall(r"byId\(\"([\w-]+)\"\)", text)}  # fmt: skip
    assert len(asked) > 20
    assert asked <= ids
    for attribute in ("aria-labelledby", "aria-controls", "aria-describedby", "for"):
        for value in re.findall(rf"\b{attribute}=\"([^\"]+)\"", INDEX):
            assert set(value.split()) <= ids, value


def test_every_property_of_the_style_is_set_somewhere() -> None:
    everything = "\n".join([*STYLES.values(), *SCRIPTS.values()])
    known = set(re.findall(r"(--[\w-]+):", everything)) | set(
        re.findall(r"setProperty\(\"(--[\w-]+)\"", everything)
    )
    used = set(re.findall(r"var\((--[\w-]+)\)", everything))
    assert len(used) > 10
    assert used <= known


@pytest.mark.parametrize("path", sorted(SCRIPTS))
def test_scripts_are_short_and_say_what_they_are_for(path: str) -> None:
    lines = SCRIPTS[path].splitlines()
    assert lines[0].startswith(("// ", "/*"))
    assert len(lines) <= 250


def declared() -> dict[str, dict[str, Any]]:
    """The sampling parameters of the form, by name."""
    rows = re.fullmatch(
        r"//.*\n\nexport const SAMPLING = (\[.*),\n\];\n", SCRIPTS["/ui/sampling.js"], re.DOTALL
    )
    assert rows is not None
    return {each["name"]: each for each in json.loads(rows[1] + "]")}


def test_the_form_has_every_sampling_parameter_with_what_is_declared_of_it() -> None:
    assert PARAMETERS.keys() - declared().keys() == {"logprobs", "prompt_logprobs", "detokenize"}
    for name, row in declared().items():
        parameter = PARAMETERS[name]
        assert (row["kind"], row["hint"]) == (parameter.kind.value, parameter.meaning)
        assert row["fallback"] == (None if parameter.default == () else parameter.default)
        assert ("step" in row) == (row["kind"] == "number")
    kinds = re.search(r"^const PARSERS = \{(.*)\};$", SCRIPTS["/ui/parameters.js"], re.MULTILINE)
    assert kinds is not None
    assert {each["kind"] for each in declared().values()} <= {*re.findall(r"(\w+):", kinds[1]), "switch"}


def test_the_form_has_no_field_that_the_server_does_not_know() -> None:
    others = re.findall(r"\{ name: \"(\w+)\", label:", SCRIPTS["/ui/parameters.js"])
    assert len(others) > 5
    known = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert {*declared(), *others} <= known
