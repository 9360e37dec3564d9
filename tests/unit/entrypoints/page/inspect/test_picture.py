"""The picture: of any run, at its size, with something on each of its parts."""

from __future__ import annotations

import builtins
import pathlib
import warnings
from typing import Any

import attrs
import matplotlib.image
import numpy as np
import pytest

from nanoserve.entrypoints.page.inspect.chart import gather
from nanoserve.entrypoints.page.inspect.colours import BLOCKS, DOING
from nanoserve.entrypoints.page.inspect.picture import draw, draw_chart
from nanoserve.entrypoints.page.inspect.rows import Doing
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import Snapshot
from tests.unit.entrypoints.recorded_run import RecordedRun, recorded_run, restarted

SIZE = (1200, 1600)


def pixels(path: pathlib.Path) -> Any:
    return (matplotlib.image.imread(path)[..., :3] * 255).round().astype(np.uint8)


def count(image: Any, colour: str) -> int:
    """Pixels of exactly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.uint8)
    return int((image == wanted).all(axis=-1).sum())


def drawn(run: RecordedRun, path: pathlib.Path, title: str | None = None) -> Any:
    draw(run, str(path), title=title)
    image = pixels(path)
    assert image.shape[:2] == SIZE
    return image


def test_all_that_happens_can_be_seen(tmp_path: pathlib.Path) -> None:
    run = recorded_run()
    image = drawn(run, tmp_path / "run.png")
    for doing in (Doing.QUEUED, Doing.DECODE, Doing.PREFILL, Doing.PREEMPTED):
        assert count(image, DOING[doing]) > 500, doing
    cells = {cell for column in gather(run).blocks.columns[0] for cell in column[1:]}
    for cell in cells:
        assert count(image, BLOCKS[cell]) > 150, cell


def test_a_tiny_run_fills_the_picture(tmp_path: pathlib.Path) -> None:
    image = drawn(recorded_run("only", max_tokens=1), tmp_path / "run.png")
    assert count(image, DOING[Doing.PREFILL]) > 100_000


def test_a_trace_without_a_step_can_be_drawn(tmp_path: pathlib.Path) -> None:
    run = recorded_run("only")
    image = drawn(RecordedRun(run.header, [Snapshot(at=0.0, findable=((),))]), tmp_path / "run.png")
    assert (image != 255).any()


@pytest.mark.parametrize("num_requests", [100, 500])
def test_a_long_run_is_drawn_within_the_same_size(tmp_path: pathlib.Path, num_requests: int) -> None:
    run = recorded_run(num_requests=num_requests, num_blocks=40)
    chart = gather(run)
    assert chart.num_steps > num_requests
    image = drawn(run, tmp_path / "run.png")
    for doing in (Doing.QUEUED, Doing.DECODE, Doing.PREEMPTED):
        assert count(image, DOING[doing]) > 100, doing


def test_hostile_names_are_drawn_as_text(tmp_path: pathlib.Path) -> None:
    """Neither formulas nor letters that no font has, which would be a warning and so a failure."""
    run = recorded_run("$\\frac{", "\u4e16\U0001f600", "_x_" * 99, "\x00\n\t", "")
    header = attrs.evolve(run.header, model="$\\alpha_{$ \u4e16", release="$x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = drawn(RecordedRun(header, run.records), tmp_path / "a.png")
        titled = drawn(run, tmp_path / "b.png", title="cost: $\\frac{ and $_{")
    for each in (image, titled):
        assert count(each, DOING[Doing.DECODE]) > 100


def test_where_another_engine_takes_over_is_marked(tmp_path: pathlib.Path) -> None:
    run = restarted(recorded_run())
    assert count(drawn(run, tmp_path / "run.png"), "#CC79A7") > 100


def test_the_same_run_makes_the_same_picture(tmp_path: pathlib.Path) -> None:
    chart = gather(recorded_run())
    for name in ("a.png", "b.png"):
        draw_chart(chart, str(tmp_path / name))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_without_matplotlib_the_extra_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadValueError, match=r"pip install 'nanoserve\[plot\]'"):
        draw(recorded_run("a"), str(tmp_path / "run.png"))
