"""API keys as flags and files have them: their clients, and what those may do.

A file of keys holds one key per line (`#` begins a comment), or, where its name ends in `.toml`:

    [[key]]
    key = "..."             # or sha256 = "...", the key's digest in hexadecimal
    name = "batch jobs"     # for logs; keys of one name are one client
    request_class = "batch" # one of --request-classes
    priority = 10           # lower runs first, with --policy priority
    rate_limit = 60         # requests per minute
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import structlog

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.compose.config.kinds import ValueKind, integer, number, secrets, text
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.server.http.security import Key, KeyRing
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import DEFAULT_CLASS

_SALT_PURPOSE: Final = b"nanoserve prefix cache salt\0"
_FIELDS: Final[Mapping[str, ValueKind]] = {
    "key": secrets(),
    "sha256": text(),
    "name": text(),
    "request_class": text(),
    "priority": integer(-(2**31), 2**31),
    "rate_limit": number(above=0.0),
}


def read_keys(settings: AccessSettings, classes: Iterable[str] = (DEFAULT_CLASS,)) -> KeyRing:
    """Every key that the settings name; `classes` are the request classes that a key may have.

    Raises `BadValueError`, which never shows a key.
    """
    entries = [
        _Entry(f"key-{index}", "api_key", {"key": each.value})
        for index, each in enumerate(settings.api_key, 1)
    ]
    if settings.api_key_file is not None:
        entries += _read_file(settings.api_key_file)
    keys = [_make_key(each, settings, frozenset(classes)) for each in entries]
    distinct = {key.digest: key for key in reversed(keys)}
    return KeyRing([key for key in keys if distinct[key.digest] is key])


@attrs.frozen
class _Entry:
    """One key as it was written: its name if it brings none, its place for errors, and its fields."""

    name: str
    place: str
    fields: Mapping[str, Any]


def _make_key(entry: _Entry, settings: AccessSettings, classes: frozenset[str]) -> Key:
    fields = {field: _checked(field, value, entry.place) for field, value in entry.fields.items()}
    if ("key" in fields) == ("sha256" in fields):
        raise BadValueError("api_key_file", f"{entry.place} must have either key or sha256")
    if "key" in fields:
        digest = hashlib.sha256(fields["key"][0].value.encode()).digest()
    elif re.fullmatch(r"[0-9a-fA-F]{64}", fields["sha256"]):
        digest = bytes.fromhex(fields["sha256"])
    else:
        raise BadValueError("api_key_file", f"{entry.place}: sha256 must be 64 hexadecimal digits")
    request_class = fields.get("request_class", DEFAULT_CLASS)
    if request_class not in classes:
        message = (
            f"{entry.place} has the request class {request_class!r}, which --request-classes does not name"
        )
        raise BadValueError("api_key_file", message)
    salt = hashlib.sha256(_SALT_PURPOSE + digest).hexdigest()[:32]
    client = Client(
        name=fields.get("name", entry.name),
        identity=salt,
        cache_salt="" if settings.share_prefix_cache else salt,
        request_class=request_class,
        priority=fields.get("priority", 0),
    )
    return Key(digest=digest, client=client, rate_limit=fields.get("rate_limit", settings.rate_limit))


def _read_file(path: str) -> list[_Entry]:
    text = _text_of(pathlib.Path(path))
    if path.endswith(".toml"):
        entries = [
            _Entry(f"entry-{number}", f"[[key]] number {number}", fields)
            for number, fields in enumerate(_tables_of(path, text), 1)
        ]
    else:
        entries = [
            _Entry(f"line-{number}", f"{path} line {number}", {"key": line.strip()})
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#")
        ]
    if not entries:
        message = f"{path} holds no key; leave --api-key-file out to let all requests in"
        raise BadValueError("api_key_file", message)
    return entries


def _text_of(path: pathlib.Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadValueError("api_key_file", f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadValueError("api_key_file", f"{path} is not UTF-8 text") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        structlog.get_logger().warning("others can read the file of API keys; chmod 600 it", path=str(path))
    return text


def _tables_of(path: str, text: str) -> list[dict[str, Any]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        raise BadValueError("api_key_file", f"{path} is not valid TOML {place[0] if place else ''}") from None
    tables = document.pop("key", None)
    if document or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise BadValueError("api_key_file", f"{path} must hold [[key]] tables and nothing else")
    return tables


def _checked(name: str, value: Any, place: str) -> Any:
    if name not in _FIELDS:
        message = f"{place} has the field {name!r}; known are {', '.join(_FIELDS)}"
        raise BadValueError("api_key_file", message)
    try:
        return _FIELDS[name].check(value)
    except ValueError as error:
        raise BadValueError("api_key_file", f"{place}: {name} {error}") from None
