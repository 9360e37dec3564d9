"""Templates that never end, or fill memory, are stopped; those for tools are chosen as transformers chooses them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from nanoserve.adapters.huggingface import chat_template, template_process
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.template_process import TemplateProcess, TemplateStoppedError
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool
from tests.unit.adapters.huggingface.conftest import chat_style
from tests.unit.adapters.huggingface.oracle import oracle

MESSAGES = [{"role": "user", "content": "hello"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
BOMBS = {
    "repetition": "{{ 'x' * 10**11 }}",
    "power": "{{ (10 ** (10 ** 10)) % 7 }}",
    "doubling": "{% set n = namespace(x='x' * 9) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "width": "{{ 'x' | center(10**11) }}",
    "format": "{{ '%099999999999d' % 1 }}",
    "replacing": "{% set x = 'x' * 10**7 %}{{ x.replace('x', x) }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
}
MACRO = "{% macro again(n) %}{{ again(n + 1) }}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}"


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess(cpu_seconds=0.5)
    yield made
    made.close()


def pid_of(process: TemplateProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_a_template_without_end_is_stopped_and_the_next_one_is_filled(
    process: TemplateProcess,
) -> None:
    assert process.render("{{ a }}", {"a": "1"}) == "1"
    pid = pid_of(process)
    with pytest.raises(TemplateStoppedError):
        process.render(LOOPS, {})
    assert not psutil.pid_exists(pid)  # nothing goes on computing
    assert process.render("{{ a }}", {"a": "2"}) == "2"


@pytest.mark.parametrize("source", [*BOMBS.values(), MACRO], ids=[*BOMBS, "macro"])
def test_a_template_that_fills_memory_fails_within_its_own(
    monkeypatch: pytest.MonkeyPatch,
    process: TemplateProcess,
    byte_level_folder: Callable[[str | None], str],
    source: str,
) -> None:
    monkeypatch.setattr(chat_template, "template_process", lambda: process)
    template = HFChatTemplate(HFTokenizer(byte_level_folder(source)))
    with pytest.raises(
        BadValueError, match=r"messages: the model's chat template (was stopped|cannot render them)"
    ):
        template.render(MESSAGES)
    assert process.render("{{ a }}", {"a": "next"}) == "next"


def test_bombs_are_not_evaluated_when_variables_are_asked_for(process: TemplateProcess) -> None:
    assert process.variables("{{ enable_thinking }}{{ 'x' * 10**11 }}") <= {"enable_thinking"}
    assert process.variables("{" * 3 + "(" * 99_999) == frozenset()


def test_callers_wait_for_one_another(process: TemplateProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = range(200)
        found = list(pool.map(lambda n: process.render("{{ n }}", {"n": n}), numbers))
    assert found == [str(n) for n in numbers]


TOOL_USE = (
    "{{- 'Tools: ' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{%- for message in messages %}{{- '<|start_header_id|>' + message.content }}{%- endfor %}"
)
TOOL = Tool(name="weather", description="of a place", parameters={"type": "object", "properties": {}})


def listed(folder: pathlib.Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": chat_style("chatml")},
        {"name": "tool_use", "template": TOOL_USE},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def in_files(folder: pathlib.Path) -> None:
    (folder / "chat_template.jinja").write_text(chat_style("chatml"))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)


def one_for_tools_alone(folder: pathlib.Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)


@pytest.mark.parametrize("write", [listed, in_files, one_for_tools_alone])
@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["plain", "tools"])
def test_tools_go_to_the_template_that_is_named_for_them(
    byte_level_folder: Callable[[str | None], str], write: Callable[[pathlib.Path], None], tools: list[Tool]
) -> None:
    folder = byte_level_folder(None)
    write(pathlib.Path(folder))
    template = HFChatTemplate(HFTokenizer(folder))
    given: dict[str, Any] = {
        "tools": [tool.as_message() for tool in tools] or None,
        "add_generation_prompt": True,
    }
    try:
        wanted = oracle(folder).apply_chat_template(MESSAGES, **given)["input_ids"]
    except ValueError:
        assert write is one_for_tools_alone
        with pytest.raises(BadValueError, match="no default"):
            template.render(MESSAGES, tools=tools)
        return
    assert template.render(MESSAGES, tools=tools) == wanted
    assert HFTokenizer(folder).dialect_facts.chat_template == TOOL_USE


def test_it_finds_what_this_process_has_found_otherwise(
    process: TemplateProcess, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may add nanoserve to its own path; what lies in the working directory is still not run."""
    (tmp_path / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "executable", getattr(sys, "_base_executable"))  # noqa: B009 - may have nothing installed
    assert process.render("{{ a }}", {"a": "1"}) == "1"


def test_a_start_that_fails_is_tried_again(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, start = [OSError(14, "Bad address")], subprocess.Popen

    def refusing(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if refusals:
            raise refusals.pop()
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", refusing)
    assert process.render("a {{ b }}", {"b": 1}) == "a 1"
    assert not refusals


def test_one_that_was_killed_meanwhile_costs_no_conversation(process: TemplateProcess) -> None:
    assert process.render("{{ a }}", {"a": "1"}) == "1"
    killed = psutil.Process(pid_of(process))
    killed.kill()
    while killed.status() != psutil.STATUS_ZOMBIE:
        pass
    assert process.render("{{ a }}", {"a": "2"}) == "2"


def test_an_answer_that_nobody_waits_for_any_more_is_no_other_ones(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_file: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(template_process, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.render("{{ a }}", {"a": "mine"})
    assert process.render("{{ a }}", {"a": "yours"}) == "yours"
