"""`nanoserve inspect` does not keep silent for minutes: it says that a long trace takes its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoserve.entrypoints.page.inspect import command
from nanoserve.entrypoints.page.inspect.command import run_inspect
from tests.unit.entrypoints.recorded_run import recorded_run


@pytest.mark.parametrize("is_long", [True, False])
def test_a_long_trace_is_announced(
    is_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.trace"
    path.write_bytes(b"".join(recorded_run().lines))
    monkeypatch.setattr(command, "LONG_FILE", path.stat().st_size + (0 if is_long else 1))
    run_inspect(str(path), summary=True)
    assert (f"{path}: 0 MB, which takes" in capsys.readouterr().err) == is_long
