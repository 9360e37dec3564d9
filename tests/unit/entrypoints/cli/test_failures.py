"""Errors as the command line says them: one line, whatever they hold."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.cli.failures import FAILED, INTERRUPTED, USAGE, Reporting, report
from nanoserve.entrypoints.cli.main import nanoserve, run_command
from nanoserve.entrypoints.client.server import ProtocolError
from nanoserve.ports.errors import BadValueError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadValueError("file", "line 3\nis \x1b[2Jbroken\x07"), USAGE),
        (ProtocolError("the server said \x1b]0;title\x07 and \u202eback"), FAILED),
        (OSError(2, "No such file", "\x9b31m"), FAILED),
        (RuntimeError("\x1b[31m"), FAILED),
    ],
)
def test_what_strangers_said_cannot_steer_the_terminal(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error, Reporting()) == code
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.startswith("nanoserve: ")


def test_ctrl_c_while_help_is_printed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nanoserve, "format_help", press)
    with pytest.raises(SystemExit) as ended:
        run_command(["--help"])
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "nanoserve: interrupted\n"
