"""What the log says of an engine's failures."""

from __future__ import annotations

import json
import sys

import pytest
import structlog

from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_that_wants_no_colours_gets_none(
    environment: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_log(LogSettings(log_json=False))
    try:
        structlog.get_logger().error("a word")
    finally:
        structlog.reset_defaults()
    line = capsys.readouterr().err
    assert "a word" in line
    assert ("\x1b" in line) == coloured


@pytest.mark.parametrize("error", [ZeroDivisionError("nothing"), StepFailedError("row 0 is broken", (0,))])
def test_a_step_that_fails_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = assemble(EngineSettings(threads=1)).engine

    def fail(_ticket: object) -> None:
        raise error

    monkeypatch.setattr(engine._runner, "collect", fail)  # type: ignore[attr-defined]
    params = SamplingParams(max_tokens=4)
    engine.add(Request(request_id="r7", prompt_token_ids=(1097, 1313, 1519), sampling=params, seed=1))
    configure_log(LogSettings(log_json=True))
    try:
        engine.turn()
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [each for each in lines if each["event"] == "a step failed"]
    assert (line["level"], line["ended"]) == ("error", ["r7"])
    assert line["error"] == f"{type(error).__name__}: {error}"
    assert ("Traceback" in line.get("exception", "")) == isinstance(error, ZeroDivisionError)
    assert "1313" not in str(line)
