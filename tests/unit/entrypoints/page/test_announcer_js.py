"""A screen reader hears a growing answer in whole sentences, all of it, and is not interrupted at every token."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.entrypoints.page.node import run_node

SPEAK = """
const said = [];
globalThis.document = { getElementById: () => ({ set textContent(text) { said.push(text); } }) };
const { SpokenText } = await import("./page/announcer.js");
let now = 0;
let due = null;
performance.now = () => now;
globalThis.setTimeout = (work, delay) => (due = { work, at: now + delay });
globalThis.clearTimeout = () => (due = null);
function pass(milliseconds) {
  now += milliseconds;
  if (!due || due.at > now) return;
  const { work } = due;
  due = null;
  work();
}
const spoken = new SpokenText();
for (const piece of JSON.parse(process.argv[2])) {
  spoken.add(piece);
  pass(10);
}
pass(2000);
spoken.end("Stopped.");
console.log(JSON.stringify(said));
"""


def speak(folder: Path, pieces: list[str]) -> list[str]:
    """What is said of an answer of which a piece comes every hundredth of a second, and the end two seconds later."""
    said: list[str] = run_node(SPEAK, [], folder, json.dumps(pieces))[0]
    return said


def test_a_fast_answer_is_told_once_a_second_in_whole_sentences(tmp_path: Path) -> None:
    pieces = [piece for number in range(300) for piece in ("Line ", f"{number}", ". ")]
    said = speak(tmp_path, pieces)
    assert 8 <= len(said) <= 12
    assert " ".join(said) == "".join(pieces) + "Stopped."
    assert all(each.endswith(".") for each in said)


def test_a_whole_sentence_does_not_wait_for_what_follows(tmp_path: Path) -> None:
    assert speak(tmp_path, ["Hel", "lo there. Now"]) == ["Hello there.", "Now Stopped."]


def test_what_never_ends_a_sentence_is_told_at_the_end(tmp_path: Path) -> None:
    assert speak(tmp_path, ["word "] * 500) == ["word " * 499 + "word Stopped."]
