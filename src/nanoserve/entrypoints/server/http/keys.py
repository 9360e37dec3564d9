"""API keys: who they belong to and what those may do. Kept as SHA-256 digests; the keys themselves are forgotten.

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
import hmac
import pathlib
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import structlog

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.compose.config.kinds import Kind, integer, number, secrets, text
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import DEFAULT_CLASS

_SALT_PURPOSE: Final = b"nanoserve prefix cache salt\0"
_FIELDS: Final[Mapping[str, Kind]] = {
    "key": secrets(),
    "sha256": text(),
    "name": text(),
    "request_class": text(),
    "priority": integer(-(2**31), 2**31),
    "rate_limit": number(above=0.0),
}


@attrs.frozen(kw_only=True)
class Key:
    """One key; `rate_limit` is in requests per minute, None is unlimited."""

    digest: bytes = attrs.field(repr=False)
    client: Client
    rate_limit: float | None = None


class KeyRing:
    """All keys. Empty, it lets everybody in as one anonymous client."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: str) -> Key | None:
        """The key that was presented. Every key is compared, each in constant time, so that time tells nothing."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def read_keys(settings: AccessSettings, classes: Iterable[str] = (DEFAULT_CLASS,)) -> KeyRing:
    """Every key that the settings name; `classes` are the request classes that a key may have.

    Raises `BadValueError`, which never shows a key.
    """
    keys = [
        _plain_key(each.value, f"key-{index}", settings) for index, each in enumerate(settings.api_key, 1)
    ]
    if settings.api_key_file is not None:
        keys += _read_file(settings.api_key_file, settings, frozenset(classes))
    distinct = {key.digest: key for key in reversed(keys)}
    return KeyRing([key for key in keys if distinct[key.digest] is key])


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def _salt(digest: bytes, settings: AccessSettings) -> str:
    return "" if settings.share_prefix_cache else hashlib.sha256(_SALT_PURPOSE + digest).hexdigest()[:32]


def _plain_key(key: str, name: str, settings: AccessSettings) -> Key:
    digest = digest_of(key)
    client = Client(name=name, cache_salt=_salt(digest, settings))
    return Key(digest=digest, client=client, rate_limit=settings.rate_limit)


def _read_file(path: str, settings: AccessSettings, classes: frozenset[str]) -> list[Key]:
    text = _text_of(pathlib.Path(path))
    if path.endswith(".toml"):
        entries = _entries_of(path, text)
        keys = [_entry_key(entry, index, settings, classes) for index, entry in enumerate(entries, 1)]
    else:
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        keys = [
            _line_key(path, number, line, settings)
            for number, line in lines
            if line and not line.startswith("#")
        ]
    if not keys:
        raise BadValueError(
            "api_key_file", f"{path} holds no key; leave --api-key-file out to let everybody in"
        )
    return keys


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


def _line_key(path: str, number: int, line: str, settings: AccessSettings) -> Key:
    try:
        secrets().check(line)
    except ValueError as error:
        raise BadValueError("api_key_file", f"{path} line {number} {error}") from None
    return _plain_key(line, f"line-{number}", settings)


def _entries_of(path: str, text: str) -> list[Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        raise BadValueError("api_key_file", f"{path} is not valid TOML {place[0] if place else ''}") from None
    entries = document.pop("key", None)
    if document or not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise BadValueError("api_key_file", f"{path} must hold [[key]] tables and nothing else")
    return entries


def _entry_key(entry: dict[str, Any], index: int, settings: AccessSettings, classes: frozenset[str]) -> Key:
    place = f"[[key]] number {index}"
    read = {name: _read_field(name, value, place) for name, value in entry.items()}
    if ("key" in read) == ("sha256" in read):
        raise BadValueError("api_key_file", f"{place} must have either key or sha256")
    digest = digest_of(read["key"][0].value) if "key" in read else _digest_from(read["sha256"], place)
    request_class = read.get("request_class", DEFAULT_CLASS)
    if request_class not in classes:
        message = f"{place} has the request class {request_class!r}, which --request-classes does not name"
        raise BadValueError("api_key_file", message)
    client = Client(
        name=read.get("name", f"entry-{index}"),
        cache_salt=_salt(digest, settings),
        request_class=request_class,
        priority=read.get("priority", 0),
    )
    return Key(digest=digest, client=client, rate_limit=read.get("rate_limit", settings.rate_limit))


def _read_field(name: str, value: Any, place: str) -> Any:
    if name not in _FIELDS:
        known = ", ".join(_FIELDS)
        raise BadValueError("api_key_file", f"{place} has the field {name!r}; known are {known}")
    try:
        return _FIELDS[name].check(value)
    except ValueError as error:
        raise BadValueError("api_key_file", f"{place}: {name} {error}") from None


def _digest_from(text: str, place: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise BadValueError("api_key_file", f"{place}: sha256 must be 64 hexadecimal digits")
    return bytes.fromhex(text)
