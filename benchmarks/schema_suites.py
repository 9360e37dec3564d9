"""How JSON schemas and instances of a suite fare as grammars: what is accepted, what is refused, and what masks take.

    python -m benchmarks.schema_suites FOLDER [--tokenizer tokenizer.json] [--some N] [--show N]

FOLDER holds JSON files, each of one case or of a list of them: `{"schema": ..., "tests": [{"data": ..., "valid": ...}]}`. So do
`tests/draft2020-12` of https://github.com/json-schema-org/JSON-Schema-Test-Suite and `maskbench/data` of
https://github.com/guidance-ai/jsonschemabench. Instances are written with their members as they stand and, where that is refused, in the
order of the schema, which a grammar keeps. Exits with 1 if an instance is accepted that the suite and jsonschema_rs both call invalid.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import jsonschema_rs
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.llguidance.crew import start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.reading import check
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind, Grammar, Matcher, new_block

NUMBERS: Final = re.compile(r"\d[\d.e+-]*")
PERCENTILES: Final = (0.5, 0.99, 1.0)


@attrs.define
class Findings:
    """What a run has found; `seconds` by what took them."""

    instances: Counter[str] = attrs.field(factory=Counter)
    schemas: Counter[str] = attrs.field(factory=Counter)
    refusals: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)
    strict: list[str] = attrs.field(factory=list)
    seconds: dict[str, list[float]] = attrs.field(factory=dict)

    def took(self, what: str, started: float) -> None:
        """Until now, since it was started."""
        self.seconds.setdefault(what, []).append(time.perf_counter() - started)


class Bench:
    """Grammars over one vocabulary, and what was found with them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = tokenizer.get_vocab_size()
        self._tokenizer = tokenizer
        settings = Settings(tokenizer.to_str(), (1,), size, size)
        self._grammars = LLGrammars(lambda: start_workers(settings, 1), workers=1)
        self._block = new_block(size, 1)
        self.findings = Findings()

    def case(self, name: str, schema: Any, tests: Sequence[dict[str, Any]]) -> None:
        """Compile the schema and walk its instances."""
        constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))
        try:
            grammar = self._compiled(constraint)
        except BadValueError as error:
            self.findings.schemas["refused by name"] += 1
            self.findings.refusals[NUMBERS.sub("_", str(error))[:72]] += 1
            self.findings.instances["of refused schemas"] += len(tests)
            return
        before = self.findings.instances.copy()
        for test in tests:
            self._instance(f"{name}: {test.get('description', '')}", schema, test, grammar)
        change = self.findings.instances - before
        mistaken = change["wrongly accepted"] or change["wrongly refused"]
        self.findings.schemas["with a mistake" if mistaken else "right"] += 1

    def _compiled(self, constraint: Constraint) -> Grammar:
        started = time.perf_counter()
        check(constraint)
        self.findings.took("check", started)
        started = time.perf_counter()
        pending = self._grammars.compile(constraint)
        while not pending.done():
            self._grammars.rest()
        self.findings.took("compile", started)
        return pending.result()

    def _instance(self, name: str, schema: Any, test: dict[str, Any], grammar: Grammar) -> None:
        counts, valid = self.findings.instances, test["valid"]
        written = [_text(test["data"]), _text(_in_order(test["data"], _ranks(schema)))]
        if valid != _is_valid(schema, test["data"]):
            counts["jsonschema_rs disagrees with the suite"] += 1
        accepted = [self._accepts(grammar.matcher(), each) for each in dict.fromkeys(written)]
        if valid and not any(accepted):
            counts["wrongly refused"] += 1
            self.findings.strict.append(name)
        elif any(accepted) and not valid:
            counts["wrongly accepted"] += 1
            self.findings.wrong.append(name)
        else:
            counts["right" if accepted[0] == valid else "right in the schema's order"] += 1

    def _accepts(self, matcher: Matcher, text: str) -> bool:
        """Whether an answer may be this text.

        A mask may allow less than its matcher consumes: of a constant text, one way to cut it into tokens.
        """
        is_allowed = True
        for token in [*self._tokenizer.encode(text, add_special_tokens=False).ids, 0]:
            started = time.perf_counter()
            while 0 in (filled := self._grammars.fill([matcher], self._block)()).late:
                self.findings.schemas["late masks"] += 1
                while not self._grammars.is_ready(matcher):
                    self._grammars.rest()
            self.findings.took("mask", started)
            if filled.empty:
                if is_allowed:
                    raise AssertionError(f"a mask allows a token, and the matcher refuses it, in {text!r}")
                return False
            is_allowed = bool(self._block.mask(0)[token >> 3] >> (token & 7) & 1)
            may_end = matcher.may_end()
            self._grammars.consume([(matcher, token)])
        return may_end


def cases(folder: Path, some: int | None) -> Iterator[tuple[str, Any, Sequence[dict[str, Any]]]]:
    """Name, schema and tests of each; or of some files, always the same."""
    files = sorted(folder.rglob("*.json"))
    if some is not None and some < len(files):
        files = random.Random(0).sample(files, some)
    for file in files:
        content = json.loads(file.read_text())
        for each in content if isinstance(content, list) else [content]:
            yield (
                f"{file.relative_to(folder)}: {each.get('description', '')}",
                each["schema"],
                each.get("tests", ()),
            )


def _is_valid(schema: Any, value: Any) -> bool | None:
    """By jsonschema_rs, formats included; None where it cannot say, for want of what lies elsewhere."""
    try:
        return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _ranks(schema: Any) -> dict[str, int]:
    """The places of all names of properties in the schema's text."""
    ranks: dict[str, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(named := part.get("properties"), dict):
                for name in named:
                    ranks.setdefault(name, len(ranks))
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                visit(each)

    visit(schema)
    return ranks


def _in_order(value: Any, ranks: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [_in_order(each, ranks) for each in value]
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: ranks.get(name, len(ranks)))
        return {name: _in_order(value[name], ranks) for name in names}
    return value


def _show(findings: Findings, most: int) -> None:
    console = Console(soft_wrap=True)
    for title, counts in (
        ("schemas", findings.schemas),
        ("instances", findings.instances),
        ("refused, by what is said", findings.refusals),
    ):
        table = Table(title, "", box=None)
        for what, count in counts.most_common(most):
            table.add_row(what, f"{count:,}")
        console.print(table)
    for title, names in (("wrongly accepted", findings.wrong), ("wrongly refused", findings.strict)):
        for name in names[:most]:
            console.print(f"{title}: {name}", markup=False, highlight=False)
    table = Table("milliseconds", "number", "mean", *(f"p{100 * each:g}" for each in PERCENTILES), box=None)
    for what, seconds in findings.seconds.items():
        ordered = sorted(seconds)
        marks = [ordered[min(int(each * len(ordered)), len(ordered) - 1)] for each in PERCENTILES]
        cells = [f"{1000 * each:.3f}" for each in (statistics.fmean(ordered), *marks)]
        table.add_row(what, f"{len(ordered):,}", *cells)
    console.print(table)


def main() -> None:
    """Walk the folder and print what was found."""
    parser = argparse.ArgumentParser(description="JSON schemas of a suite as grammars.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=model_folder() / "tokenizer.json")
    parser.add_argument("--some", type=int, help="this many of the files, chosen at random, always the same")
    parser.add_argument("--show", type=int, default=20, help="the longest list that is printed")
    given = parser.parse_args()
    bench = Bench(Tokenizer.from_file(str(given.tokenizer)))
    for name, schema, tests in cases(given.folder, given.some):
        bench.case(name, schema, tests)
    _show(bench.findings, given.show)
    sys.exit(bool(bench.findings.wrong))


if __name__ == "__main__":
    main()
