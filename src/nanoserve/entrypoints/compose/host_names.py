"""The meaning of a Host header, and whether a name server decides where that is.

A web page can have its own name point at 127.0.0.1 and then talk, as its own origin, to whatever listens there. Its
requests name it in their Host header, which distinguishes them from those of this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final

_HOST: Final = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]*)?")


def host_name(written: str) -> str | None:
    """The name in a Host header, as names are compared: without the port; None if there is none."""
    found = _HOST.fullmatch(written.lower())
    return found["name"].removesuffix(".") if found else None


def names_elsewhere(headers: Iterable[tuple[bytes, bytes]], names: Collection[str] | None) -> str | None:
    """The first Host header that a name server has to explain and that is none of `names`; None if all are fine, or may be."""
    hosts = (value.decode("latin-1") for name, value in headers if name == b"host")
    wrong = (
        each for each in hosts if not needs_no_name_server(each) and host_name(each) not in (names or ())
    )
    return None if names is None else next(wrong, None)


def needs_no_name_server(host: str) -> bool:
    """True if a Host header has an address, or a name that always means the machine which uses it."""
    name = host_name(host)
    if name is None:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_address(name.strip("[]"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
