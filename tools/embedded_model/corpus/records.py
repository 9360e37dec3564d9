"""Small JSON records of six kinds, and the sentences that ask for them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from tools.embedded_model.corpus.cast import given_name
from tools.embedded_model.corpus.wordlists import words

Value = str | int | float | bool | list[str]


@attrs.frozen
class JsonRecord:
    """One record: its kind, its fields in order, and a phrase that names the values a request gave."""

    kind: str
    fields: Mapping[str, Value]
    details: str

    def text(self, *, pretty: bool = False) -> str:
        """The record as valid JSON, on one line or indented by two spaces."""
        return json.dumps(dict(self.fields), ensure_ascii=False, indent=2 if pretty else None)


def _name(rng: random.Random) -> str:
    return given_name(rng, rng.choice(("she", "he")), 0.3)


def _person(rng: random.Random) -> JsonRecord:
    fields: dict[str, Value] = {
        "name": _name(rng),
        "age": rng.randint(5, 90),
        "city": rng.choice(words("cities")),
    }
    details = f"named {fields['name']} who is {fields['age']} years old and lives in {fields['city']}"
    if rng.random() < 0.5:
        fields["job"] = rng.choice(words("jobs"))
        details += (
            f" and works as a {fields['job']}" if fields["job"] != "engineer" else " and works as an engineer"
        )
    if rng.random() < 0.4:
        hobbies = rng.sample(words("hobbies"), rng.randint(1, 3))
        fields["hobbies"] = hobbies
        details += " and likes " + " and ".join(hobbies)
    return JsonRecord("person", fields, details)


def _order(rng: random.Random) -> JsonRecord:
    quantity, item, price = (
        rng.randint(1, 12),
        rng.choice(words("goods")),
        rng.randint(2, 99) + rng.choice((0.0, 0.5)),
    )
    fields: dict[str, Value] = {
        "order_id": rng.randint(100, 999),
        "item": item,
        "quantity": quantity,
        "price": price,
    }
    fields["paid"] = rng.random() < 0.5
    state = "paid" if fields["paid"] else "not paid"
    details = f"number {fields['order_id']} with item {item}, quantity {quantity}, price {price}, {state}"
    return JsonRecord("order", fields, details)


def _book(rng: random.Random) -> JsonRecord:
    title = f"The {rng.choice(words('colors')).title()} {rng.choice(words('things')).title()}"
    author = f"{_name(rng)} {rng.choice(('Bell', 'Hill', 'Stone', 'Brook', 'Field', 'Moon', 'Wood', 'Lake'))}"
    fields: dict[str, Value] = {"title": title, "author": author, "year": rng.randint(1900, 2025)}
    fields["pages"] = rng.randint(40, 600)
    details = f"called {title} by {author} from {fields['year']} with {fields['pages']} pages"
    return JsonRecord("book", fields, details)


def _weather(rng: random.Random) -> JsonRecord:
    city, sky, degrees = rng.choice(words("cities")), rng.choice(words("skies")), rng.randint(-10, 38)
    fields: dict[str, Value] = {"city": city, "sky": sky, "temperature": degrees, "wind": rng.randint(0, 60)}
    details = f"in {city} where it is {sky} with temperature {degrees} and wind {fields['wind']}"
    return JsonRecord("weather", fields, details)


def _pet(rng: random.Random) -> JsonRecord:
    name, animal, age = _name(rng), rng.choice(words("animals")), rng.randint(1, 15)
    fields: dict[str, Value] = {
        "name": name,
        "animal": animal,
        "age": age,
        "color": rng.choice(words("colors")),
    }
    details = f"named {name}, kind of animal {animal}, age {age}, color {fields['color']}"
    return JsonRecord("pet", fields, details)


def _meeting(rng: random.Random) -> JsonRecord:
    day = rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))
    time, guests = f"{rng.randint(8, 19):02}:{rng.choice(('00', '15', '30', '45'))}", [_name(rng), _name(rng)]
    fields: dict[str, Value] = {"day": day, "time": time, "guests": guests, "online": rng.random() < 0.5}
    where = "online" if fields["online"] else "not online"
    return JsonRecord("meeting", fields, f"on {day} at {time} with {guests[0]} and {guests[1]}, {where}")


_KINDS: Final[tuple[Callable[[random.Random], JsonRecord], ...]] = (
    _person,
    _order,
    _book,
    _weather,
    _pet,
    _meeting,
)


def draw_record(rng: random.Random) -> JsonRecord:
    """Draw one record of any kind."""
    return rng.choice(_KINDS)(rng)


def records_document(rng: random.Random) -> str:
    """A raw text of one pretty record, one to six records a line each, or one JSON list."""
    records = [draw_record(rng)]
    style = rng.random()
    if style < 0.3:
        return records[0].text(pretty=True)
    if style < 0.75:
        return "\n".join(draw_record(rng).text() for _ in range(rng.randint(1, 6)))
    kind = rng.choice(_KINDS)
    return json.dumps([dict(kind(rng).fields) for _ in range(rng.randint(2, 5))], ensure_ascii=False)


def request(record: JsonRecord, rng: random.Random) -> tuple[str, str]:
    """A user's request for the record and the JSON that answers it."""
    kind, keys = record.kind, list(record.fields)
    listed = ", ".join(keys[:-1]) + f" and {keys[-1]}"
    article = "an" if kind == "order" else "a"
    verb = rng.choice(("Make", "Write", "Give me", "Create"))
    asked = rng.choice(
        (
            f"{verb} a JSON record for {article} {kind} {record.details}.",
            f"{verb} a JSON record for {article} {kind} {record.details}.",
            f"{verb} JSON for {article} {kind} {record.details}.",
            f"{verb} a JSON record for {article} {kind}.",
            f"{verb} a JSON record of {article} {kind}.",
            f"{verb} a JSON object for {article} {kind} with the keys {listed}.",
            f"{verb} a JSON object with the keys {listed}.",
            f"Describe {article} {kind} as JSON.",
        )
    )
    pretty = rng.random() < 0.2
    return (asked + " Indent it.", record.text(pretty=True)) if pretty else (asked, record.text())
