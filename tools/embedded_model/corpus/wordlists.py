"""Word lists and story grammars, read from the text files beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from tools.embedded_model.corpus.template import Template, parse

_HERE: Final = Path(__file__).parent
PARAGRAPH_MARK: Final = "//"

Beat = tuple[Template, ...]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@cache
def words(name: str) -> tuple[str, ...]:
    """The comma-separated entries of `lexicon/<name>.txt`."""
    text = " ".join(_lines(_HERE / "lexicon" / f"{name}.txt"))
    return tuple(entry for entry in (part.strip() for part in text.split(",")) if entry)


@cache
def fields(name: str) -> tuple[tuple[str, ...], ...]:
    """The entries of a word list whose entries are `one/two/three`."""
    return tuple(tuple(entry.split("/")) for entry in words(name))


@cache
def pairs(name: str) -> tuple[tuple[str, str], ...]:
    """The entries of a word list whose entries are `question=answer`."""
    split = (entry.partition("=") for entry in words(name))
    return tuple((question, answer) for question, _, answer in split)


@cache
def calendar() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Times of a story, each group with the weather that fits it."""
    rows = (line.partition("|") for line in _lines(_HERE / "lexicon" / "calendar.txt"))
    return tuple(
        (tuple(time.strip() for time in times.split(",")), tuple(sky.strip() for sky in skies.split(";")))
        for times, _, skies in rows
    )


@cache
def morals(plot: str) -> tuple[str, ...]:
    """The lessons of a story with this plot, as clauses without capital or full stop."""
    rows = [line.split(" | ") for line in _lines(_HERE / "grammar" / "morals.txt")]
    return tuple(clause for clause, *names in rows if not names or plot in names[0].split())


@cache
def beats(name: str) -> tuple[tuple[bool, Beat], ...]:
    """The beats of `grammar/<name>.txt`: (starts a paragraph, the alternatives of which one is told)."""
    blocks = "\n".join(_lines(_HERE / "grammar" / f"{name}.txt")).split("\n\n")
    return tuple(_beat(block.strip().splitlines()) for block in blocks if block.strip())


def _beat(lines: list[str]) -> tuple[bool, Beat]:
    starts_paragraph = lines[0] == PARAGRAPH_MARK
    alternatives = lines[1:] if starts_paragraph else lines
    return starts_paragraph, tuple(parse("" if line == "-" else line) for line in alternatives)


@cache
def plots() -> tuple[str, ...]:
    """The names of all plots, sorted."""
    rest = {"opening", "opening_in_time", "ending", "morals"}
    return tuple(sorted(path.stem for path in (_HERE / "grammar").glob("*.txt") if path.stem not in rest))
