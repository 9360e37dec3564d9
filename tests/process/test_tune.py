"""`nanoserve tune` where it cannot measure."""

from __future__ import annotations

import pathlib

import pytest
import torch

from nanoserve.entrypoints.cli.main import run_command

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")


def test_without_a_gpu_it_ends_in_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "folder" / "tiles.json"
    assert run_command(["tune", "shape:tiny", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nanoserve: device: cuda cannot be used: ")
    assert not out.exists()


@pytest.mark.parametrize("rows", ["", "0", "257", "1,,2", "8,x", "-1", "1" * 5000, "\u0661"])
def test_rows_that_have_no_tiles_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", "shape:tiny", "--rows", rows]) == 2
    assert "rows: are numbers from 1 to 256" in capsys.readouterr().err
