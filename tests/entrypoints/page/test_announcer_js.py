"""A screen reader hears a growing answer in whole sentences, all of it, and is not interrupted at every token."""

from __future__ import annotations

import json
from pathlib import Path

from tests.entrypoints.page.node import run_node

SPEAK = """
const said = [];
globalThis.document = { getElementById: () => ({ set textContent(text) { said.push(text); } }) };
const { SpokenText } = await import("./page/announcer.js");
let now = 0;
performance.now = () => now;
const spoken = new SpokenText();
for (const piece of JSON.parse(process.argv[2])) {
  spoken.add(piece);
  now += 10;
}
spoken.end("Stopped.");
console.log(JSON.stringify(said));
"""


def speak(folder: Path, pieces: list[str]) -> list[str]:
    """What is said of an answer of which a piece comes every hundredth of a second."""
    said: list[str] = run_node(SPEAK, [], folder, json.dumps(pieces))[0]
    return said


def test_a_fast_answer_is_told_once_a_second_in_whole_sentences(tmp_path: Path) -> None:
    pieces = [piece for number in range(300) for piece in ("Line ", f"{number}", ". ")]
    said = speak(tmp_path, pieces)
    assert 8 <= len(said) <= 11
    assert " ".join(said) == "".join(pieces) + "Stopped."
    assert all(each.endswith(".") for each in said)


def test_what_never_ends_a_sentence_is_told_at_the_end(tmp_path: Path) -> None:
    assert speak(tmp_path, ["word "] * 500) == ["word " * 499 + "word Stopped."]
