"""Parts of a step log for those who may not read the words in it."""

from __future__ import annotations

import attrs

from nanoserve.entrypoints.app.live_feed import Part, Redaction
from tests.unit.entrypoints.recorded_run import FORMAT, SECRET, recorded_run


def test_the_same_log_is_left_without_its_words() -> None:
    run = recorded_run(words=True)
    plain = recorded_run()
    header, *lines = (line.removesuffix(b"\n") for line in run.lines)
    part = Part(b"\n".join(lines), header)
    shown = Redaction(FORMAT).redacted(part)
    assert any(getattr(record, "words", ()) for record in run.records)
    assert shown.header is not None
    assert FORMAT.decode_header(shown.header) == attrs.evolve(run.header, has_words=False)
    found = [FORMAT.decode(line) for line in shown.lines.split(b"\n")]
    assert [attrs.evolve(each, at=0.0) for each in found] == [
        attrs.evolve(each, at=0.0) for each in plain.records
    ]
    assert not any(token in shown.lines for token in (SECRET.encode(), b'{"'))


def test_a_part_that_was_made_is_made_once() -> None:
    run = recorded_run("a", words=True)
    part = Part(FORMAT.encode(run.records[1]))
    redaction = Redaction(FORMAT)
    shown = redaction.redacted(part)
    assert shown.header is None
    assert redaction.redacted(part) is shown
