"""What `--help` promises: examples that work, the options that people use first, every option in `--help-all`, true defaults."""

from __future__ import annotations

import pathlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.main import nanoserve, run_command
from nanoserve.entrypoints.cli.options import Command, help_pages
from nanoserve.entrypoints.compose.config.configuration import ALL_SETTINGS, read_configuration
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.ports.sampling import PARAMETERS, Door, set_by

ROOT = pathlib.Path(__file__).parents[4]
FEW = 14
"""Options that can be read at a glance."""


def commands(group: click.Group = nanoserve, prefix: str = "") -> Iterator[tuple[str, Command]]:
    for name, command in group.commands.items():
        assert isinstance(command, Command), f"{prefix}{name} has no examples"
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


COMMANDS = {"": nanoserve, **dict(commands())}


def examples(name: str) -> list[list[str]]:
    found: list[list[str]] = help_pages(COMMANDS[name].pages)[f"nanoserve {name}".strip()]["examples"]
    return found


def common(name: str) -> list[str]:
    listed: str = help_pages(COMMANDS[name].pages)[f"nanoserve {name}".strip()].get("common", "")
    return listed.split()


def flags(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def test_every_page_is_of_a_command() -> None:
    files = {command.pages for command in COMMANDS.values()}
    pages = [page for each in files for page in help_pages(each)]
    assert sorted(each.removeprefix("nanoserve").strip() for each in pages) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_examples_and_lists_few_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    text = shown(capsys, *name.split(), "--help")
    assert 2 <= len(examples(name)) <= 3
    places = [text.index(f" {example}") for example, _ in examples(name)]
    assert places == sorted(places)
    assert places[-1] < text.index("╭"), "options come after the examples"
    listed = set(re.findall(r"│ (--[a-z-]+)", text))
    assert 1 <= len(listed) <= FEW
    assert all(not option.hidden for option in flags(command) if option.opts != ["--help-all"])
    assert "--help-all" in listed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_help_all(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[name]
    text = shown(capsys, *name.split(), "--help-all")
    listed = set(re.findall(r"│ (--[a-z-]+)", text))
    wanted = {each.opts[0] for each in flags(command) if not each.hidden}
    assert listed == wanted | {"--help"}
    assert set(common(name)) <= wanted
    if {"--dtype", "--block-size"} <= wanted:
        assert text.index("│ --dtype") < text.index("│ --block-size")


EXAMPLES = [(name, example) for name in COMMANDS for example, _ in examples(name)]


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_an_example_can_be_typed(name: str, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings are read, too: values out of range and options that exclude each other would be errors."""
    typed = shlex.split(example.rpartition("|")[2].partition(">")[0])
    assert typed[: 1 + len(name.split())] == ["nanoserve", *name.split()]
    command: click.Command = nanoserve
    arguments = typed[1:]
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    if any(each.opts == ["--print-config"] for each in flags(command)):
        assert run_command([*typed[1:], "--print-config"]) == 0
        assert capsys.readouterr().err == ""
    else:
        command.make_context("nanoserve", arguments, obj=Reporting())


def test_model_and_url_are_arguments_where_nothing_else_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("serve", "chat", "verify", "bench throughput", "bench latency"):
        rows = shown(capsys, *name.split(), "a/model", "--print-config").splitlines()
        assert any(row.split() == ["model", "a/model", "the", "argument", "MODEL"] for row in rows), name
    for name in ("top", "bench serve"):
        rows = shown(capsys, *name.split(), "http://a:1", "--print-config").splitlines()
        assert any(row.split()[:2] == ["url", "http://a:1"] for row in rows), name


@pytest.mark.parametrize("command", ["serve", "chat", "verify"])
def test_an_address_given_as_a_model_is_told_apart(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([command, "http://127.0.0.1:8000"]) == 2
    error = capsys.readouterr().err
    assert "is an address, not a model" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("command", ["bench serve", "bench throughput"])
def test_an_option_has_the_same_name_everywhere(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    asked = [*command.split(), "--print-config"]
    path = tmp_path / "it.toml"
    path.write_text("[bench]\nnum_prompts = 7")
    given: list[list[str]] = [["--num-prompts", "7"], ["--config", str(path)]]
    for each in given:
        rows = shown(capsys, *asked, *each).splitlines()
        assert any(row.split()[:2] == ["num_prompts", "7"] for row in rows)
    monkeypatch.setenv("NANOSERVE_NUM_PROMPTS", "7")
    assert any(row.split()[:2] == ["num_prompts", "7"] for row in shown(capsys, *asked).splitlines())


# Defaults


def default_in_help(command: str, name: str) -> str | None:
    (option,) = [each for each in flags(COMMANDS[command]) if each.name == name]
    found = re.search(r"\[default: (.*)\]", option.help or "")
    return found and found[1]


@pytest.mark.parametrize("name", sorted(set_by(Door.MODEL)))
def test_help_names_the_models_default_where_the_models_holds(name: str) -> None:
    ours = PARAMETERS[name].default
    for command in ("generate", "chat"):
        options = [each.name for each in flags(COMMANDS[command])]
        if name in options and name != "max_tokens":
            assert default_in_help(command, name) == f"the model's, else {ours}"
    if name in {"top_p", "top_k", "min_p"}:
        assert default_in_help("bench throughput", name) == str(ours), "benchmarks ask no model"
        assert default_in_help("bench serve", name) == "the server's", "it is not sent"


def test_help_says_how_many_requests_are_sent() -> None:
    from nanoserve.entrypoints.bench.serving import command  # noqa: PLC0415 - loads what measures

    helps = {each.name: each.help or "" for each in flags(COMMANDS["bench serve"])}
    for name, number in {
        "num_prompts": command.NUM_PROMPTS,
        "input_len": command.INPUT_LEN,
        "output_len": command.OUTPUT_LEN,
    }.items():
        assert f" {number} if not given." in helps[name]


def documented_defaults() -> Iterator[Any]:
    """Rows of tables in docs that name options and their defaults."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        default = None
        for line in page.read_text().splitlines():
            cells = [each.strip() for each in line.strip("|").split("|")]
            if not line.startswith("|"):
                default = None
            elif any(each.startswith("default") for each in cells):
                default = next(place for place, each in enumerate(cells) if each.startswith("default"))
            elif default is not None and cells[0].startswith("`--"):
                yield pytest.param(cells[0], cells[default], id=f"{page.name} {cells[0]}")


DOCUMENTED = list(documented_defaults())


def as_written(setting: Setting) -> set[str]:
    """How a table may say a default."""
    value = setting.default
    if value is None:
        return {"none", "`auto`"}
    if isinstance(value, bool):
        return {"on" if value else "off", str(value).lower()}
    if isinstance(value, (int, float)):
        return {
            str(value),
            f"{value} s",
            f"{value:,}",
            f"{value:g} s",
            *(f"{value / 2**power:g} {unit}" for power, unit in SIZES),
        }
    return {str(value), f"`{value}`"}


SIZES = ((10, "KiB"), (20, "MiB"), (30, "GiB"))


def test_tables_of_options_are_found() -> None:
    assert len(DOCUMENTED) > 10


@pytest.mark.parametrize(("names", "stated"), DOCUMENTED)
def test_a_default_in_the_docs_is_the_one_that_holds(names: str, stated: str) -> None:
    known = {each.flag: each for each in ALL_SETTINGS}
    given = re.findall(r"--[a-z-]+", names)
    said = stated.split(", ")
    for flag, one in zip(given, said if len(said) == len(given) else [stated] * len(given), strict=True):
        setting = known[flag]
        if setting.default in {None, "auto"} and one not in {"none", "`auto`"}:
            number = re.match(r"[\d.,]+\d", one)
            is_said = number is None or number[0].replace(",", "") in setting.summary
            assert is_said, f"--help of {flag} does not say {one}"
        else:
            assert one in as_written(setting), f"{flag} is {setting.default!r}"


# Configuration files


@pytest.mark.parametrize("command", ["serve", "route"])
def test_a_printed_file_holds_every_setting_and_changes_nothing(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    text = shown(capsys, command, "--print-toml")
    assert not tomllib.loads(text).get("serve"), "as it is printed it sets nothing"
    path = tmp_path / "all.toml"
    path.write_text(re.sub(r"^# ([a-z0-9_]+ = )", r"\1", text, flags=re.MULTILINE))
    read = read_configuration({}, {}, config=str(path))
    settings = {each.name: each for each in ALL_SETTINGS}
    set_there = {name for name, each in read.values.items() if each.origin != "default"}
    assert set_there == {each.name for each in flags(COMMANDS[command]) if each.name in settings}
    assert {name: read.values[name].value for name in set_there} == {
        name: settings[name].default for name in set_there
    }


def test_what_is_given_is_written_and_keys_are_not(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    given = (
        "--port",
        "9000",
        "--allowed-host",
        "a",
        "--allowed-host",
        "b",
        "--api-key",
        "sk-1",
        "--kv-memory",
        "0.5",
    )
    text = shown(capsys, "serve", "my/model", *given, "--no-spare", "--print-toml")
    assert "sk-1" not in text
    written = tomllib.loads(text)
    assert written == {
        "model": "my/model",
        "kv_memory": 0.5,
        "serve": {"port": 9000, "spare": False, "allowed_host": ["a", "b"]},
    }


def test_the_sample_file_is_what_the_server_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sample = (ROOT / "deploy" / "nanoserve.toml").read_text()
    assert sample == shown(capsys, "serve", "--print-toml"), "nanoserve serve --print-toml writes it anew"
