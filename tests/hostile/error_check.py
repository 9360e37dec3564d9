"""A check for Schemathesis: every error has the shape of its protocol. Loaded by its command line."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.hostile.shapes import error_flaw

PROBES = {"/livez", "/readyz", "/health"}


@schemathesis.check  # type: ignore[untyped-decorator]
def error_shape(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Fails where an error is written otherwise."""
    if response.status_code >= 400 and case.path not in PROBES and case.method != "HEAD":
        flaw = error_flaw(case.path, response.content)
        assert flaw is None, flaw
