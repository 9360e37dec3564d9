"""The report: complete in itself, bound to what is inside it, and unharmed by whatever clients call their requests."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import attrs
import pytest

from nanoserve.entrypoints.page.inspect import report
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.ports.driven import TraceError
from tests.unit.entrypoints.recorded_run import FORMAT, RecordedRun, recorded_run

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\"'`${x}\\ $policy $$",
    "<img src=https://example.org/x onerror=alert(1)>",
    "\u2028\u2029\u00e9\u4e16\U0001f600",
    "&lt;&#60;\r\n\t\x00\x1f",
    "]]>",
    "",
)


@attrs.define
class Element:
    """One start tag, with the text up to the next tag."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


class Document(HTMLParser):
    """A page as a browser takes it apart; `elements` are in the order of their start tags."""

    def __init__(self, document: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._is_open = False
        self.feed(document.decode())
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attributes)))
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            self.elements[-1].text += data

    def all(self, tag: str) -> list[Element]:
        return [each for each in self.elements if each.tag == tag]

    def by_id(self, name: str) -> Element:
        (found,) = [each for each in self.elements if each.attributes.get("id") == name]
        return found


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run(*HOSTILE)


@pytest.fixture(scope="module")
def document(run: RecordedRun) -> Document:
    return Document(make_report(run.header, run.records, FORMAT))


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_trace_comes_out_as_it_went_in(run: RecordedRun, document: Document) -> None:
    header, *lines = document.by_id("trace").text.strip("\n").split("\n")
    assert FORMAT.decode_header(header.encode()) == run.header
    assert [FORMAT.decode(line.encode()) for line in lines] == run.records


def test_no_request_adds_an_element(document: Document) -> None:
    harmless = recorded_run(*(f"request-{number}" for number in range(len(HOSTILE))))
    other = Document(make_report(harmless.header, harmless.records, FORMAT))
    assert [each.tag for each in document.elements] == [each.tag for each in other.elements]
    assert "<" not in document.by_id("trace").text


def test_a_hostile_model_name_stays_text() -> None:
    run = recorded_run("a")
    header = attrs.evolve(run.header, model="</title><script>alert(1)</script>", started="$trace")
    document = Document(make_report(header, run.records, FORMAT))
    assert len(document.all("script")) == 2
    assert "</title><script>alert(1)</script>" in document.all("title")[0].text
    assert "$trace" in document.by_id("served").text


def test_the_policy_allows_what_is_inside_and_nothing_else(document: Document) -> None:
    (policy,) = [
        each.attributes["content"] or ""
        for each in document.all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    trace, script = document.all("script")
    (style,) = document.all("style")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": digest(script.text),
        "style-src": digest(style.text),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert trace.attributes == {"type": "application/x-ndjson", "id": "trace"}
    assert script.attributes == {"type": "module"}


def test_nothing_is_to_be_fetched(document: Document) -> None:
    for each in document.elements:
        target = [
            each.attributes[name] for name in ("src", "href", "action", "data") if name in each.attributes
        ]
        assert not target or target == ["data:,"]
        assert not any(name.startswith("on") or name == "style" for name in each.attributes)
    (style,) = document.all("style")
    assert not re.search(r"@import|url\(", style.text)
    script = document.all("script")[1].text
    hosts = set(
        re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", re.sub(r"(?m)^\s*(//|\*).*$", "", script))
    )
    assert hosts <= {"http://www.w3.org/2000/svg"}


def test_a_trace_that_is_too_long_for_a_page_is_refused(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(map(len, run.lines[1:]))
    monkeypatch.setattr(report, "MOST_BYTES", size)
    make_report(run.header, run.records, FORMAT)
    monkeypatch.setattr(report, "MOST_BYTES", size - 1)
    with pytest.raises(TraceError, match="too long for a page"):
        make_report(run.header, run.records, FORMAT)


def test_the_same_run_makes_the_same_report(run: RecordedRun) -> None:
    assert make_report(run.header, run.records, FORMAT) == make_report(run.header, iter(run.records), FORMAT)
