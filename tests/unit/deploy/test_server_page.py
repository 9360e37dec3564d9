"""The programs in docs/server.md run, against a whole server on a socket, and its tables name what is there."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from nanoserve.entrypoints.compose.config.serve_settings import BatchSettings
from nanoserve.entrypoints.server import steering
from nanoserve.entrypoints.server.http import errors
from nanoserve.entrypoints.server.protocols.openai import wire
from tests.unit.entrypoints.server.http.app_world import app_world

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "server.md").read_text()
PROGRAMS = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=[each.split()[1] + str(place) for place, each in enumerate(PROGRAMS)]
)
def test_the_programs_of_the_page_run(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with app_world(
        eos_token_ids=()
    ) as world:  # drawn without a seed, an end may come first and leave no text
        text = program.replace("http://127.0.0.1:8000", world.url).replace("built-in", "scripted")
        exec(compile(text, "docs/server.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_every_route_of_the_page_is_served() -> None:
    named = {
        each
        for line in section("Clients").splitlines()
        if line.startswith("|")
        for each in re.findall(r"`(/[^`]+)`", line)
    }
    with app_world() as world, world.client() as client:
        document = json.loads(client.get("/openapi.json").content)
    assert len(named) > 15
    assert named <= set(document["paths"]) | steering.PATHS | {"/openapi.json"}


def test_every_parameter_of_the_page_is_a_field() -> None:
    fields = set(wire.ChatBody.__struct_fields__) | set(wire.CompletionBody.__struct_fields__)
    rows = [line.split("|")[1] for line in section("Parameters").splitlines() if line.startswith("|")]
    named = {each for row in rows for each in re.findall(r"`(\w+)`", row)}
    assert len(named) > 25
    assert named <= fields | {"detokenize"}, "which is for Python and the command line"


def test_the_page_has_every_error_that_can_happen_and_no_other() -> None:
    server = pathlib.Path(errors.__file__).parents[1]
    source = "\n".join(each.read_text() for each in server.rglob("*.py"))
    elsewhere = {
        *("bad_request", "not_found", "method_not_allowed"),  # HTTP's phrases
        *("missing_field", "invalid_type", "file_not_found", "batch_not_found", "disk_full", "disk_error"),
        *("missing_api_key", "invalid_api_key", "malformed_request"),
    }
    found = {
        *re.findall(r'\bcode="([a-z_]+)"', source),
        *re.findall(r'\b[45][0-9][0-9],\s*"([a-z_]+)"', source),
    }
    rows = [line.split("|")[2] for line in section("Errors").splitlines() if line.startswith("|")]
    named = {code for row in rows for code in re.findall(r"`(\w+)`", row)} - {"code"}
    assert len(found) > 25
    assert named == (found | elsewhere) - {"client_left"}, "which nobody reads"


def test_every_metric_of_the_page_is_served(tmp_path: pathlib.Path) -> None:
    batches = BatchSettings(batch_dir=str(tmp_path))
    with app_world(batches=batches) as world, world.client() as client:
        page = client.get("/metrics").text
    rows = [line.split("|")[1] for line in section("Metrics").splitlines() if line.startswith("|")]
    named = {each for row in rows for each in re.findall(r"`(\w+)`", row)}
    assert len(named) > 15
    for name in named:
        assert f"# TYPE nanoserve:{name} " in page, name
