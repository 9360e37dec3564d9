"""`nanoserve tune`, once its settings are read: measure on the GPU, print, write the table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from nanoserve.entrypoints.bench.report import check_writable, doing, number, show, table
from nanoserve.entrypoints.compose.bootstrap import survey
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.errors import BadValueError

MOST_ROWS: Final = 256


def run_tuning(configuration: Configuration, *, rows: str, out: str | None) -> None:
    """Write the tiles that are faster than those of the rules. Raises whatever goes wrong."""
    asked = _numbers(rows)
    settings = attrs.evolve(configuration.engine, device="cuda")
    if settings.tensor_parallel_size > 1:
        raise BadValueError("tensor_parallel_size", "tiles are measured on one GPU; leave it out")
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        check_writable(out)
    found = survey(settings)
    if found.dtype == "float32":
        raise BadValueError("dtype", "only products of half precision have tiles to choose; leave it out")
    from nanoserve.entrypoints.compose.building import tune_products  # noqa: PLC0415 - loads torch

    done = ["loading the model"]
    with doing("tuning", lambda: done[0]):
        path, findings = tune_products(settings, found, asked, out, lambda what: done.__setitem__(0, what))
    lines = [
        (
            each.name,
            number(each.rule_us),
            number(each.us),
            number(each.nbytes / each.us / 1e3),
            number(each.tflops),
        )
        for each in findings
    ]
    show(table(["product", "us by the rule", "us in use", "GB/s", "TFLOP/s"], lines))
    wins = sum(each.tile is not None for each in findings)
    show(f"{wins} of {counted(len(findings), 'product')} are faster with another tile; {path} has them")


def _numbers(text: str) -> list[int]:
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() and 1 <= int(each[:9]) <= MOST_ROWS for each in parts):
        raise BadValueError("rows", f"are numbers from 1 to {MOST_ROWS} with commas between, got {text!r}")
    return [int(each) for each in parts]
