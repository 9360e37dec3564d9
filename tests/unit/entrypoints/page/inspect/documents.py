"""An HTML document as a browser takes it apart: elements, their attributes, and the text of scripts and styles."""

from __future__ import annotations

from html.parser import HTMLParser

import attrs


@attrs.define
class Element:
    """One start tag, with the text up to the next tag."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


class Document(HTMLParser):
    """`elements` in the order of their start tags."""

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
        """Those with this tag."""
        return [each for each in self.elements if each.tag == tag]

    def by_id(self, name: str) -> Element:
        """The one with this id."""
        (found,) = [each for each in self.elements if each.attributes.get("id") == name]
        return found
