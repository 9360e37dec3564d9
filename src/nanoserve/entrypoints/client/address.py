"""Where a server is, read from what a person typed, and the key to show it."""

from __future__ import annotations

import os
import urllib.parse
from typing import Final

import attrs

from nanoserve.ports.errors import BadValueError

KEY_VARIABLE: Final = "OPENAI_API_KEY"
_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen(kw_only=True)
class Address:
    """A server; `prefix` is the path in front of `/v1`, usually empty. `key` is not shown where this is printed."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    key: str | None = attrs.field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The origin and the prefix."""
        return self.origin + self.prefix

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


def read_address(url: str, key: str | None = None) -> Address:
    """Read a URL with or without `/v1`; without a key, the one in the environment is taken.

    Raises `BadValueError`.
    """
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise BadValueError("url", f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadValueError("url", f"must look like http://127.0.0.1:8000, got {url!r}")
    if parts.query or parts.fragment or parts.username:
        raise BadValueError("url", f"must hold no user, query or fragment, got {url!r}")
    key = key or os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise BadValueError("api_key", "must consist of printable ASCII characters")
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        key=key,
    )
