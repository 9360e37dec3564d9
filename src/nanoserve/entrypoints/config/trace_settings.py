"""Settings of the step log that `generate` and `serve` write."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.config.kinds import Boolean, Optional, Text
from nanoserve.entrypoints.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class TraceSettings:
    """Where the step log goes, and what it may tell."""

    trace: str | None = setting(
        None,
        Optional(Text("FILE"), "none"),
        "Write the engine's step log here, for `nanoserve inspect`; a name that ends in .gz is compressed.",
    )
    trace_words: bool = setting(
        False,
        Boolean(),
        "Write into the step log also what was asked and answered; otherwise it has no word.",
    )


TRACE_SETTINGS: Final[tuple[Setting, ...]] = settings_of(TraceSettings, table="")
