"""What a Host header names: this machine, or something that only a name server says is this machine.

A web page can have its own name point at 127.0.0.1 and then talk, as its own origin, to whatever listens there. Its
requests name it in their Host header, and that is how they are told from those of this machine.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]*)?")


def host_name(written: str) -> str | None:
    """The name in a Host header, as names are compared: without the port; None where there is none."""
    found = _HOST.fullmatch(written.lower())
    return found["name"].removesuffix(".") if found else None


def names_this_machine(host: str) -> bool:
    """Whether a Host header has a name or an address that no name server can point at this machine, or away from it."""
    name = host_name(host)
    if name is None:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name.strip("[]"))


def is_loopback(address: str) -> bool:
    """Whether an address reaches the machine that uses it, and no other; a name does not."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
